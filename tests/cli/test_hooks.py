"""Hooks of dp and ZeRO from a script: what is sent, what a function of the script may choose, that
sums are right where gradients are sharded, what is refused."""

import unittest

from cases import ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp, zero, tp, pp = mw.plugins("dp", "zero", "tp", "pp")
local function experiment(plan, more)
  local made = { model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 }, data = mw.synthetic {},
    sequence = 16, plan = plan, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 3 }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end
local large = { model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 256 }, batch = 24 }
local function train(plan, more) return mw.train(experiment(plan, more)) end
"""


class Hooks(ProgramCase):
    def sent(self, *options):
        """For each of dp's options the calls and bytes of the gradients, predicted and measured alike."""
        runs = self.all("run", self.write(HEAD + "".join(f"train {{ dp {{ 2, {o} }} }}\n" for o in options)))
        for run in runs:
            self.sent_as_predicted(run)
        return [next((c["calls"], c["bytes"]) for c in run["communication"] if c["phase"] == "gradients") for run in runs]

    def test_bytes(self):
        (calls, plain), bf16, (few_calls, few), (_, more), each = self.sent(
            'hook = "none"', 'hook = "bf16"', 'hook = dp.powersgd(1)', 'hook = "powersgd"', 'reduce = "each"')
        self.assertEqual(bf16, (calls, plain // 2))
        self.assertEqual(few_calls, 2 * calls)
        self.assertLess(few, plain // 4)
        self.assertLess(few, more)
        self.assertEqual(each, (4 * calls, 4 * plain))

    MIXES = ("dp { 2, hook = HOOK }", "zero { 2, stage = 1, hook = HOOK }", "zero { 2, stage = 2, hook = HOOK }", "zero { 2, stage = 3, hook = HOOK }",
             "dp { 2, hook = HOOK }, zero { 2, stage = 2 }", "zero { 4, stage = 3, replicas = 2, hook = HOOK }, tp(2)",
             'pp { 2, schedule = "zbv" }, zero { 2, stage = 2, reduce = "chunk", hook = HOOK }', "zero { 3, stage = 3, keep = true, hook = HOOK }")

    def test_a_hook_that_loses_nothing_equals_one_rank_at_every_stage(self):
        """PowerSGD whose factors would be no smaller sends gradients as they are."""
        calls = "".join(f"do local e = experiment({{ {mix} }}, large); mw.verify(e); mw.prove(e) end\n" for mix in self.MIXES)
        told = self.all("run", self.write(HEAD + calls.replace("HOOK", "dp.powersgd { rank = 64 }")))
        for mix, verified, proof in zip(self.MIXES, told[::2], told[1::2], strict=True):
            with self.subTest(mix):
                self.assertEqual(verified["verdict"], "equal")
                self.assertIn("the reduction hook powersgd, which says that its sums are exact, was not tried", proof["verdict"])

    def test_int8(self):
        gathered = ('zero { 2, stage = 3, gather = "int8" }', 'zero { 2, stage = 3, gather = "int8", hook = "int8" }, tp(2)')
        mixes = [mix.replace("HOOK", '"int8"') for mix in self.MIXES] + list(gathered)
        plain = self.only("run", self.write(HEAD + "train({}, large)"))
        for precision in ("fp32", "bf16"):
            for mix, run in zip(mixes, self.all("run", self.write(HEAD + "".join(
                    f"large.precision, large.check = '{precision}', 'replicas'; train({{ {mix} }}, large)\n" for mix in mixes))), strict=True):
                with self.subTest(mix, precision=precision):
                    self.sent_as_predicted(run)
                    self.held_as_predicted(run, 0.02)
                    for found, wanted in zip(run["losses"], plain["losses"], strict=True):
                        self.assertAlmostEqual(found, wanted, delta=0.02 * wanted)
                    self.assertNotEqual(run["losses"], plain["losses"])

    def test_bytes_of_int8(self):
        """Nearly a quarter of fp32's: a byte an element, and four for each 256 elements."""
        def sent(plan, phases):
            run = self.only("run", self.write(HEAD + f"train {{ {plan} }}"))
            return sum(use["bytes"] for use in run["communication"] if use["phase"] in phases)
        for stage in (1, 2, 3):
            share = sent(f'zero {{ 2, stage = {stage}, hook = "int8" }}', ["gradients"]) / sent(f"zero {{ 2, stage = {stage} }}", ["gradients"])
            self.assertAlmostEqual(share, 0.26, delta=0.008)
        both = ["forward", "backward"]
        self.assertAlmostEqual(sent('zero { 2, stage = 3, gather = "int8" }', both) / sent("zero { 2, stage = 3 }", both), 0.26, delta=0.008)

    def test_an_overflow_is_seen_behind_int8(self):
        """Of Inf and NaN in a block nothing finite comes back."""
        run = self.only("run", self.write(HEAD + """train({ zero { 2, stage = 2, hook = "int8" } },
          { precision = "fp16", loss_scale = { init = 2 ^ 40, interval = 2 }, steps = 4 })"""))
        self.assertEqual(run["skipped_steps"], [0, 1, 2, 3])

    def test_options_tell_hooks_apart(self):
        """A function's hooks too, which have no name in the plan's text."""
        one, two, same = self.all("run", self.write(HEAD + "for _, r in ipairs { 1, 2, 1 } do train { zero { 2, hook = function(b) return dp.powersgd { rank = r } end } } end"))
        self.assertNotEqual(one["plan_hash"], two["plan_hash"])
        self.assertNotEqual(one["hash"], two["hash"])
        self.assertEqual(one["hash"], same["hash"])

    def test_bf16_beside_zero_sends_half(self):
        for stage in (1, 2, 3):
            plain, half = (next(use for use in run["communication"] if use["phase"] == "gradients") for run in self.all("run", self.write(
                HEAD + f"train {{ zero {{ 2, stage = {stage} }} }} train {{ zero {{ 2, stage = {stage}, hook = 'bf16' }} }}")))
            self.assertEqual((half["op"], 2 * half["bytes"]), ("reduce-scatter", plain["bytes"]))

    def test_verify_says_what_a_gather_loses(self):
        done = self.call("run", self.write(HEAD + 'mw.verify(experiment { zero { 2, stage = 3, gather = "int8" } })'))
        self.assertIn("the hook int8 gathers less than the parameters, by choice, so that no activation", done.stdout)

    def test_a_function_chooses_for_each_bucket(self):
        # The embedding, the output projection and the feed-forward's matrices are those
        # over 5000 bytes.
        (calls, plain), half, (some_calls, some) = self.sent(
            'bucket = "4KiB"', 'bucket = "4KiB", hook = function() return "bf16" end',
            'bucket = "4KiB", hook = function(b) '
            'assert(b.ways == 2 and #b.parameters > 0 and b.parameters[1]:find("weight") and b.name) '
            'return b.bytes > 5000 and "bf16" or "none" end')
        self.assertEqual(half, (calls, plain // 2))
        self.assertEqual(some_calls, calls)
        self.assertEqual(plain - some, (2 * 256 * 32 + 3 * 64 * 32) * 4 // 2)

    def test_refusals(self):
        self.all_refused(HEAD, *((f"train {{ {plan} }}", code, problem) for plan, code, problem in (
            ('dp { 2, hook = "bf61" }', 2, "option.choice plan[1].hook"),
            ("dp { 2, hook = 3 }", 2, "option.choice plan[1].hook"),
            ("dp { 2, hook = dp.powersgd { rank = 0 } }", 2, "option.range plan[1].hook.rank"),
            ('dp { 2, reduce = "all" }', 2, "option.choice plan[1].reduce"),
            ('dp { 2, reduce = "each", hook = "bf16" }', 2, "option.conflict plan[1].reduce"),
            ("dp { 2, hook = function() end }", 3, "function.result plan[1].hook"),
            ("dp { 2, hook = function() return 7 end }", 3, "function.result plan[1].hook"),
            ('dp { 2, hook = function() error("no hook today") end }', 2, "script.error"),
            ('dp { 2, hook = "bf16" }, zero { 2, stage = 2, hook = "int8" }', 3, "hook.differs plan[2].hook"),
            ('dp { 2, hook = dp.powersgd { rank = 2 } }, zero { 2, hook = "powersgd" }', 3, "hook.differs plan[2].hook"),
            ('zero { 2, stage = 3, gather = true }', 2, "option.choice plan[1].gather"),
            ('zero { 2, stage = 3, gather = "powersgd" }', 3, "hook.gathers plan[1].gather"),
            ('zero { 2, gather = "int8" }', 2, "option.needs plan[1].gather"),
            ('zero { 2, stage = 3, gather = "bf16" }', 3, "hook.gathers plan[1].gather"),
            ('zero { 2, hook = "bf61" }', 2, "option.choice plan[1].hook"),
            ('dp { 2, reduce = "each" }, zero { 2, stage = 3 }', 3, "hook.parts plan"),
        )))

    def test_verify_refuses_choices_by_bytes_that_float64_makes_otherwise(self):
        text = HEAD + """
            local plan = { dp { 2, hook = function(b) return b.bytes > 160000 and "no such hook" or "none" end }, zero { 2, stage = 2 } }
            local experiment = { model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
              data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8, optimizer = mw.adamw { lr = 1e-2 }, steps = 1,
              precision = "%s" }
            assert(mw.prove(experiment).verdict == "proved")
            mw.verify(experiment)
            """
        done = self.call("run", self.write(text % "bf16"), "--json")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(problems(self.lines(done)), ["plan.float64 plan"])
        self.assertEqual(self.all("run", self.write(text % "fp32"))[-1]["verdict"], "equal")


if __name__ == "__main__":
    unittest.main(verbosity=2)
