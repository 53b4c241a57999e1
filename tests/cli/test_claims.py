"""What a plugin says of itself and does not keep: the core sees it before a rank starts, or says
that it does not."""
import unittest

from cases import TEST_PLUGINS, ProgramCase

HEAD = """\
local mw = require "meshwright"
local claims, dp, tp, pp, zero, sp = mw.plugins("claims", "dp", "tp", "pp", "zero", "sp")
local function block(with)
  return function(x)
    x = x + with(x:rms_norm():linear { to = "ffn", name = "up" }):linear { to = "hidden", name = "down" }
    return x + x:rms_norm():attention()
  end
end
local dims = { hidden = 32, heads = 4, ffn = 64, vocab = 16 }
local function e(more)
  local made = { data = mw.synthetic {}, sequence = 8, batch = 4, steps = 2, threads = 1, optimizer = mw.sgd { lr = 1e-1 },
                 plan = { tp(2) } }
  for key, value in pairs(more) do made[key] = value end
  made.model = made.model or mw.model { name = "m", layers = 2, dims = dims, block = block(made.with) }
  made.with = nil
  return made
end
"""
LLAMA = "model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 16 }"


class Claims(ProgramCase):
    def problems(self, *experiments):
        """The problems of each run that is asked for."""
        return self.tried(HEAD, [f"mw.train(e {{ {keys} }})" for keys in experiments], "--plugin-path", TEST_PLUGINS)

    def prove(self, keys, *arguments, code=0):
        script = self.write(f"{HEAD}mw.train(e {{ {keys} }})\n")
        done = self.call("prove", script, "--json", "--plugin-path", TEST_PLUGINS, *arguments)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        proof, = self.lines(done)
        return proof

    def test_what_prove_refuses_does_not_run(self):
        lars = f"{LLAMA}, plan = {{ zero {{ 2, stage = 1 }} }}"
        refused = {
            "an optimizer over the elements of a shard":
                (f"{lars}, optimizer = claims.lars(1e-2)", "two halves give other numbers"),
            "a wrong shape": ("with = function(x) return x:shorter() end", "has the shape ["),
        }
        for most in (24, 100, 500, 1000):
            refused[f"wrong above {most}"] = (f"with = function(x) return x:threshold({most}) end",
                                              "only where ffn is as large as")
        # A correct optimizer that was proved before on an equal plan does not excuse a wrong one.
        right, *found = self.problems(lars, *[keys for keys, _ in refused.values()])
        self.assertEqual(right, [])
        for (name, (keys, words)), problems in zip(refused.items(), found):
            with self.subTest(name):
                self.assertEqual({problem["code"] for problem in problems}, {"prove.lemma"}, problems)
                self.assertIn(words, problems[0]["message"])
        for name in ("an optimizer over the elements of a shard", "a wrong shape", "wrong above 500"):
            with self.subTest(name):
                proof = self.prove(refused[name][0], code=3)
                self.assertEqual(proof["verdict"], "refused")
                self.assertIn(refused[name][1], proof["refusals"][0]["message"])

    def test_a_data_value_that_no_run_has(self):
        (problem,), = self.problems("model = claims.images(16), plan = { dp(2) }")
        self.assertEqual((problem["stage"], problem["code"], problem["key"]), ("plan", "model.data", "model"))
        self.assertIn('"image", reals of (batch, seq, channels)', problem["message"])

    def test_updates_are_tried_in_several_steps(self):
        found = self.problems(*[f'{LLAMA}, optimizer = claims.sometimes "{when}"' for when in ("begin", "late", "scaled")])
        for when, problems in zip(("step 0,", "step 1000,", "times 0.5"), found):
            with self.subTest(when):
                problem, = problems
                self.assertEqual((problem["code"], problem["key"]), ("prove.lemma", "optimizer"))
                self.assertIn(when, problem["message"])

    def test_gradients_that_are_said_to_pass(self):
        wrong, right = self.problems(*[f"with = function(x) return x:passes({times}) end" for times in (3, 1)])
        self.assertEqual(right, [])
        self.assertEqual({problem["code"] for problem in wrong}, {"prove.lemma"})
        self.assertIn("is not the derivative of forward", wrong[0]["message"])

    def test_rules_that_lack_an_op(self):
        faults = {"no apply": "no `apply`", "no whole": "no `whole`", "no direction": "no `direction`",
                  "shorter": "has the shape ["}
        *found, right = self.problems(*[f'{LLAMA}, optimizer = claims.matrices "{fault}"' for fault in [*faults, "none"]])
        self.assertEqual(right, [])
        for (fault, words), problems in zip(faults.items(), found):
            with self.subTest(fault):
                self.assertEqual(problems[0]["code"], "prove.lemma" if fault == "shorter" else "plugin.fault")
                self.assertIn(words, problems[0]["message"])

    def amiss(self, faults, more="", code="plugin.fault"):
        """Each fault of the op `amiss` is refused in one sentence, with its words."""
        found = self.problems(*[f'with = function(x) return x:amiss "{fault}" end{more}' for fault in faults])
        for (fault, words), problems in zip(faults.items(), found):
            with self.subTest(fault):
                self.assertEqual({problem["code"] for problem in problems}, {code}, problems)
                self.assertIn(words, problems[0]["message"])
                self.assertIn("amiss", problems[0]["message"])
                self.assertTrue(problems[0]["hint"])

    def test_costs_that_nothing_has(self):
        self.amiss({"flops": "flops = nan", "executed": "executed = inf", "bytes": "bytes = -1",
                    "workspace": "workspace = 9.2", "less workspace": "workspace = -1", "kernels": "kernels = -5"})
        hooks = {"bytes": "bytes = -100", "kept": "kept = -1073741824", "flops": "flops = nan"}
        *found, right = self.problems(*[f'{LLAMA}, plan = {{ dp {{ 2, hook = claims.prices "{fault}" }} }}'
                                        for fault in [*hooks, "none"]])
        self.assertEqual(right, [])
        for words, (problem,) in zip(hooks.values(), found):
            with self.subTest(words):
                self.assertEqual((problem["stage"], problem["code"]), ("plan", "plugin.fault"))
                self.assertIn(words, problem["message"])

    def test_traits_beyond_the_op(self):
        self.amiss({"in place": "forward_in_place = 9, and it has 1 inputs",
                    "reads nothing": "backward_reads_input of 0 entries", "saves more": "saved x over the dim nodim"})

    def test_results_and_gradients_that_the_lemmas_see(self):
        self.amiss({"integers": "has the dtype Long, where Float is needed",
                    "truths": "has the dtype Bool, where Float is needed",
                    "no derivative": "its traits say that it is not differentiable",
                    "boom": "boom", "throws": "the integer 7"}, code="prove.lemma")
        self.amiss({"throws in runs": "the op threw the integer 7 (in the forward of layers.0.amiss"}, ', precision = "fp32"')

    def test_microbatches_are_a_cut_of_the_batch(self):
        self.amiss({"mixes": "cut by batch"}, ", plan = {}, batch = 8, microbatch = 2", code="prove.lemma")
        whole, = self.problems('with = function(x) return x:amiss "mixes" end, plan = {}, batch = 8')
        self.assertEqual(whole, [])

    def test_steps_of_no_size(self):
        faults = {"sizes": "sizes = {5, -1}", "microbatch": "microbatch = -2", "batch": "batch = -8", "no batch": "batch = 0"}
        *found, right = self.problems(*[f'{LLAMA}, batch = 8, plan = {{ dp(2) }}, microbatch = claims.shapes "{fault}"'
                                        for fault in [*faults, "none"]])
        self.assertEqual(right, [])
        for words, (problem,) in zip(faults.values(), found):
            with self.subTest(words):
                self.assertEqual((problem["stage"], problem["code"], problem["key"]), ("options", "plugin.fault", "microbatch"))
                self.assertIn(words, problem["message"])

    def test_what_an_optimizer_says(self):
        faults = {"lr": "its lr() is nan", "clip": "its clip() is -1", "no clip": "its clip() is nan",
                  "twice": 'has two states named "m"', "no name": "has a state without a name"}
        *found, right = self.problems(*[f'{LLAMA}, optimizer = claims.kept "{fault}"' for fault in [*faults, "none"]])
        self.assertEqual(right, [])
        for words, (problem,) in zip(faults.values(), found):
            with self.subTest(words):
                self.assertEqual((problem["stage"], problem["code"], problem["key"]), ("options", "plugin.fault", "optimizer"))
                self.assertIn(words, problem["message"])

    def test_hooks_are_not_tried(self):
        proof = self.prove(f'{LLAMA}, plan = {{ dp {{ 2, hook = claims.prices "none" }} }}')
        self.assertIn("the reduction hook prices, which says that its sums are exact, was not tried", proof["verdict"])

    def test_ids_that_the_vocabulary_does_not_have(self):
        faults = {"above": "sample 3: input 2 is 16", "below": "sample 3: input 2 is -1", "label": "sample 3: label 2 is -100"}
        *found, no_ids, tokens, right = self.problems(
            *[f'{LLAMA}, data = claims.ids "{fault}"' for fault in [*faults, "no ids", "tokens", "none"]])
        self.assertEqual(right, [])
        for words, (problem,) in zip(faults.values(), found):
            with self.subTest(words):
                self.assertEqual((problem["stage"], problem["code"]), ("run", "data.token"))
                self.assertIn(words + ", and the ids of this data are 0 to 15", problem["message"])
        for problem, in (no_ids, tokens):
            self.assertEqual((problem["stage"], problem["code"], problem["key"]), ("options", "plugin.fault", "data"))

    def test_a_result_of_another_dtype(self):
        (problem,), = self.problems('with = function(x) return x:wider() end, precision = "fp32"')
        self.assertEqual((problem["stage"], problem["code"]), ("run", "check.placement"))
        self.assertIn("output 0 has the dtype Double, where Float is needed", problem["message"])

    def test_parameters_that_depend_on_the_batch(self):
        growing = "batch = 8, steps = 4, plan = { dp(2) }, microbatch = mw.microbatch.ramp { from = 4, by = 4, steps = 2 }"
        (problem,), = self.problems(f"model = claims.widening(16), {growing}")
        self.assertEqual((problem["stage"], problem["code"], problem["key"]), ("plan", "microbatch.parameters", "model"))
        self.assertIn("up.weight has the shape [64, 16] in one plan and [32, 16] in another", problem["message"])

    def test_large_sizes_of_few_objects(self):
        """Each use of the op has an object of its own; the verdict says how many were tried at all sizes."""
        keys = "layers = 6, dims = dims, block = block(function(x) return x:threshold(5000) end)"
        model = f'model = mw.model {{ name = "m", {keys} }}, plan = {{ dp(2) }}'
        self.assertIn("only 4 objects of the op threshold were tried at large sizes", self.prove(model)["verdict"])
        self.assertEqual(self.prove(model.replace("layers = 6", "layers = 4"))["verdict"], "proved")

    def test_gradients_that_are_views(self):
        turned = """
local function f(plan) return e { with = function(x) return x:turned() end, plan = plan, precision = "fp64" } end
mw.verify(f { pp(2) })
mw.verify(f { pp(2), zero { 2, stage = 3 } })
"""
        for result in self.all("run", self.write(HEAD + turned), "--plugin-path", TEST_PLUGINS):
            self.assertEqual(result["verdict"], "equal")

    def test_what_was_not_tried_is_in_the_verdict(self):
        keys = "with = function(x) return x:picky() end, plan = { dp(2) }"
        proof = self.prove(keys)
        self.assertRegex(proof["verdict"], r"^proved, except: the op picky was not tried, because ")
        self.assertEqual(len(proof["not_tried"]), 1)  # of all layers
        self.assertIn(proof["verdict"] + "\n", self.call("prove", "script.lua", "--plugin-path", TEST_PLUGINS).stdout)
        strict = self.prove(keys, "--strict", code=3)
        self.assertEqual((strict["verdict"], strict["refusals"][0]["code"]), ("refused", "prove.untried"))

    def test_work_that_is_not_declared(self):
        """It is counted from the shapes where the op's class says what it computes; else the plan says what is missing."""
        long = "layers = 1, dims = { hidden = 256, heads = 4, head_dim = 64, ffn = 512, vocab = 64 }"
        text = f"""
local function attention(seen)
  return mw.model {{ name = "m", {long}, block = function(x)
    local h = x:rms_norm()
    local function part(name) return h:linear {{ to = {{ "heads", "head_dim" }}, name = name }} end
    x = x + seen(part "q", part "k", part "v"):linear {{ to = "hidden", name = "o" }}
    return x + x:rms_norm():product():linear {{ to = "hidden", name = "down" }} end }}
end
for _, seen in ipairs {{ function(q, k, v) return q:attend(k, v) end, function(q, k, v) return q:sees_all(k, v) end }} do
  for _, stack in ipairs {{ "megatron-2021", "fsdp2" }} do
    mw.plan(e {{ model = attention(seen), sequence = 32768, batch = 2, precision = "bf16", plan = {{ dp(2) }},
                cluster = mw.cluster("selene", {{ nodes = 1 }}), stack = mw.stack(stack) }})
  end
end
"""
        script = self.write(HEAD + text)
        declared, flash, seen, seen_by_flash = self.all("plan", script, "--plugin-path", TEST_PLUGINS)
        self.assertEqual(seen["flops_per_step"], declared["flops_per_step"])
        self.assertAlmostEqual(seen["step_seconds"] / declared["step_seconds"], 1, delta=0.01)
        # Kernels that leave out what a token may not see do half of it; this op names none.
        self.assertGreater(seen_by_flash["step_seconds"], 1.5 * flash["step_seconds"])
        self.assertLess(seen_by_flash["step_seconds"], 2.5 * flash["step_seconds"])
        product = ("the op product declares no FLOPs, and sums over dims of several operands: it is priced by the bytes "
                   "that it moves alone")
        self.assertEqual(declared["undeclared_work"], [product])
        self.assertEqual(len(seen["undeclared_work"]), 2)
        self.assertIn("the op sees_all declares no FLOPs", seen["undeclared_work"][0])
        self.assertIn(f"  work    {product}\n", self.call("plan", script, "--plugin-path", TEST_PLUGINS).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
