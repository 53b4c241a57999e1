"""Recompute: gradients are those of a run that keeps everything, in every mode and mix; memory
is what is predicted and less; what is made again is counted."""

import json
import unittest

from cases import MODELS, ProgramCase, matrix

HEAD = MODELS + """local modes = {
  "selective", "full", { every = 2 }, { ops = { "attention", "add" } },
  { every = 1, collectives = "keep" }, { gathers = true },
  { what = function(op) return op.kind ~= "linear" end, gathers = true }, function(op) return op.layer % 2 == 0 and op.kind ~= "attention" end,
}
local function e(model, plan, recompute, verb)
  return verb { model = models[model], data = mw.synthetic {}, sequence = verb == mw.train and 256 or 12, plan = plan,
    batch = 4, microbatch = 1, recompute = recompute, threads = 1, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 1 }
end
"""

MIXES = HEAD + """
local mixes = {
  {}, { dp(2) }, { tp(2) }, { tp(2), sp() }, { zero { 2, stage = 3 } }, { sp(2) }, { sp { 2, form = "ulysses" } },
  { sp { 2, form = "allgather" }, tp(2) }, { pp { 2, schedule = "1f1b" } }, { pp { 2, schedule = "zb-h1" }, tp(2) },
  { pp { 2, schedule = "zbv" } }, { pp { 2, schedule = "interleaved", chunks = 2 }, zero { 2, stage = 2 } },
}
local experts = { { dp(2), ep(2) }, { dp(2), tp(2), ep(4) }, { pp(2), zero { 2, stage = 3 }, ep(2) } }
for _, mode in ipairs(modes) do
  for _, model in ipairs { "llama", "gpt", "moe" } do
    for _, mix in ipairs(mixes) do
      if model ~= "moe" or #mix < 2 then e(model, mix, mode, mw.verify) end
    end
  end
  for _, mix in ipairs(experts) do e("moe", mix, mode, mw.verify) end
end
"""


class Recompute(ProgramCase):
    @matrix
    def test_every_mode_and_mix_equals_one_rank(self):
        results = self.verify_all(MIXES)
        self.assertGreater(len(results), 150)

    def test_what_frees_nothing_is_told_with_its_numbers(self):
        """Where W keeps what is made again for I, full recompute costs time and frees nothing."""
        call = """mw.%s { model = mw.llama { layers = 4, hidden = 64, heads = 4, ffn = 128, vocab = 64 }, data = mw.synthetic {},
            sequence = 64, plan = { pp { 2, schedule = "%s" } }, batch = 8, microbatch = 1, recompute = "%s", threads = 1,
            optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }\n"""
        results = self.all("plan", self.write('local mw = require "meshwright"\nlocal pp = mw.plugins "pp"\n' + "".join(
            call % ("plan", schedule, mode) for schedule in ("1f1b", "zb-h1") for mode in ("none", "full"))))
        for kept, again in (results[:2], results[2:]):
            self.assertNotIn("recompute_frees_bytes", kept)
            self.assertEqual(again["recompute_frees_bytes"], kept["peak_bytes"] - again["peak_bytes"])
            self.assertAlmostEqual(again["recompute_costs_seconds"], again["step_seconds"] - kept["step_seconds"], delta=1e-9)
        self.assertGreater(results[1]["recompute_frees_bytes"], 0.2 * results[0]["peak_bytes"])
        self.assertLess(results[3]["recompute_frees_bytes"], 0.01 * results[2]["peak_bytes"])
        said = {}
        for verb in ("plan", "train"):
            for schedule in ("1f1b", "zb-h1"):
                done = self.call("run", self.write('local mw = require "meshwright"\nlocal pp = mw.plugins "pp"\n' +
                                                   call % (verb, schedule, "full")))
                self.assertEqual(done.returncode, 0, done.stderr)
                said[verb, schedule] = "note    recompute frees" in done.stdout + done.stderr
        self.assertEqual(said, {("plan", "1f1b"): False, ("train", "1f1b"): False,
                                ("plan", "zb-h1"): True, ("train", "zb-h1"): True})

    def test_slices_that_free_nothing_are_told(self):
        """W keeps what is made again for I slice by slice, so slices free memory under 1f1b alone."""
        call = """mw.plan { model = mw.llama { layers = 32, hidden = 64, heads = 4, ffn = 512, vocab = 64 }, data = mw.synthetic {},
            sequence = 64, plan = { pp { 2, schedule = "%s" }, coshard { "ffn", slices = 4%s } }, batch = 8, microbatch = 1,
            threads = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }\n"""
        for schedule, kept, told in (("1f1b", "", False), ("1f1b", ", recompute = false", True), ("zb-h1", "", True)):
            done = self.call("run", self.write('local mw = require "meshwright"\nlocal pp, coshard = mw.plugins("pp", "coshard")\n'
                                               + call % (schedule, kept)))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("note    coshard frees" in done.stdout + done.stderr, told, schedule + kept)

    def ran(self, plan, *modes, models=("llama",)):
        """Of each model and mode the result, which is as predicted."""
        script = "".join(f'e("{model}", {plan}, {mode}, mw.train)\n' for model in models for mode in modes)
        return [self.as_predicted(result) for result in self.all("run", self.write(HEAD + script))]

    def as_predicted(self, result):
        predicted = result["predicted"]["memory"][0]["activations"]
        self.assertAlmostEqual(result["memory"]["activations"] / predicted, 1, delta=0.02)
        self.sent_as_predicted(result)
        return result

    def test_less_is_kept_and_more_is_done(self):
        for plan in ("{}", "{ tp(2), sp() }", "{ sp(2) }"):
            runs = iter(self.ran(plan, '"none"', '"selective"', '"full"', models=("llama", "gpt")))
            for kept, part, full in zip(runs, runs, runs):
                with self.subTest(kept["plan"]):
                    self.assertEqual(kept["losses"], part["losses"])
                    self.assertEqual(kept["losses"], full["losses"])
                    self.assertLess(part["memory"]["activations"], kept["memory"]["activations"])
                    self.assertLess(full["memory"]["activations"], 0.75 * part["memory"]["activations"])
                    flops = [r["predicted"]["hardware_flops_per_step"] for r in (kept, part, full)]
                    self.assertLess(flops[0], flops[1])
                    self.assertLess(flops[1], flops[2])
                    self.assertEqual(len({r["predicted"]["flops_per_step"] for r in (kept, part, full)}), 1)

    def test_collectives_are_repeated_or_kept(self):
        plan = "{ tp(2) }"
        bytes_of = lambda r: sum(c["bytes"] for c in r["communication"] if c["phase"] == "recompute")
        none, again, kept = self.ran(plan, '"none"', '"full"', '{ every = 1, collectives = "keep" }')
        self.assertEqual(bytes_of(none), 0)
        forward = sum(c["bytes"] for c in again["communication"] if c["phase"] == "forward")
        # Of a layer, attention's sum is made again; the mlp's is not,
        # as nothing of the layer reads it.
        self.assertGreater(bytes_of(again), 0.3 * forward)
        self.assertEqual(bytes_of(kept), 0)

    def test_gathers_are_repeated_for_what_is_kept(self):
        plan = "{ tp(2), sp() }"
        attention = 'function(op) return op.kind == "attention" end'
        kept, again, both, called = self.ran(plan, '"none"', "{ gathers = true }", '{ what = "selective", gathers = true }',
                                             f"{{ what = {attention}, gathers = true }}")
        self.assertEqual(kept["losses"], again["losses"])
        self.assertLess(again["memory"]["activations"], kept["memory"]["activations"])
        gathers = lambda run, phase: sum(c["calls"] for c in run["communication"]
                                         if c["op"] == "all-gather" and c["phase"] == phase)
        self.assertEqual(gathers(kept, "recompute"), 0)
        self.assertGreater(gathers(again, "recompute"), 0)
        self.assertLessEqual(gathers(again, "recompute"), gathers(again, "forward"))
        self.assertLess(both["memory"]["activations"], again["memory"]["activations"])
        self.assertEqual(both["memory"]["activations"], called["memory"]["activations"])

    def test_nothing_is_fetched_for_what_is_kept(self):
        for run in self.ran("{ tp(2), sp() }", '{ ops = { "swiglu" } }', '"selective"'):
            self.assertEqual([c for c in run["communication"] if c["phase"] == "recompute"], [])

    def test_the_cheapest_set_that_fits(self):
        head = HEAD + """
local function big(verb, mode)
  return verb { model = mw.llama { layers = 6, hidden = 64, heads = 4, kv_heads = 2, ffn = 172, vocab = 64 },
    data = mw.synthetic {}, sequence = 256, plan = { tp(2) }, batch = 4, recompute = mode, threads = 1,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
end
"""
        big = lambda *calls: self.all("run", self.write(head + "".join(f"big(mw.{call})\n" for call in calls)))
        peak = lambda result: result["memory"][0]["peak"]
        none, selective, full, ample = big('plan, "none"', 'plan, "selective"', 'plan, "full"', 'plan, { fit = "1GiB" }')
        self.assertEqual(peak(ample), peak(none))
        limits = [int(peak(full) + share * (peak(none) - peak(full))) for share in (0.8, 0.5, 0.2)]
        results = iter(big(*(f"{verb}, {{ fit = {limit} }}" for limit in limits for verb in ("plan", "train", "verify"))))
        flops = []
        for limit, fitted, run, verdict in zip(limits, results, results, results):
            with self.subTest(limit=limit):
                self.assertLessEqual(peak(fitted), limit)
                flops.append(fitted["hardware_flops_per_step"])
                # Of the other modes those that fit take longer.
                self.assertGreater(peak(none), limit)
                if peak(selective) <= limit:
                    self.assertLess(fitted["step_seconds"], selective["step_seconds"])
                self.assertLess(fitted["step_seconds"], full["step_seconds"])
                self.assertLessEqual(run["peak_bytes"], limit)
                self.assertEqual(verdict["verdict"], "equal")
        self.assertEqual(flops, sorted(flops))
        self.all_refused(head, ('big(mw.plan, { fit = "1MiB" })', 3, "recompute.fit recompute"))

    def test_each_stage_of_a_pipeline_makes_again_what_it_must(self):
        """Of four stages the first holds four microbatches, the last one: it makes nothing again."""
        head = HEAD + """
local function staged(verb, mode, more)
  local e = { model = mw.llama { layers = 8, hidden = 64, heads = 4, kv_heads = 2, ffn = 172, vocab = 64 }, data = mw.synthetic {},
    sequence = 256, plan = { pp { 4, schedule = "1f1b", layout = "even" } }, batch = 8, microbatch = 1, recompute = mode, threads = 1,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(more or {}) do e[key] = value end
  return verb(e)
end
"""
        staged = lambda *calls: self.all("run", self.write(head + "".join(f"staged(mw.{call})\n" for call in calls)))
        none, full = staged('plan, "none"', 'plan, "full"')
        limit = full["peak_bytes"] + 3 * (none["peak_bytes"] - full["peak_bytes"]) // 10
        each, word, alike, verdict, kept, run = staged(
            f"plan, {{ fit = {limit} }}", f'plan, "fit", {{ memory = {limit} }}', f"plan, {{ fit = {limit}, by_stage = false }}",
            f"verify, {{ fit = {limit} }}", 'train, "none"',
            f'train, {{ fit = {limit} }}, {{ log = "run.h5", checkpoint = {{ path = "ck" }} }}')
        stages = each["recompute_stages"]
        count = [sum(parts.values()) for parts in stages]
        self.assertEqual(count, sorted(count, reverse=True))
        self.assertEqual(stages[3], {})
        self.assertGreater(count[0], count[2])
        self.assertLessEqual(each["peak_bytes"], limit)
        self.assertEqual(word["recompute_stages"], stages)
        self.assertEqual(alike["recompute_stages"], 4 * alike["recompute_stages"][:1])
        self.assertLess(each["hardware_flops_per_step"], alike["hardware_flops_per_step"])
        self.assertAlmostEqual(each["recompute_alike_seconds"], alike["step_seconds"], delta=1e-9)
        self.assertNotIn("recompute_alike_seconds", alike)
        self.assertEqual(verdict["verdict"], "equal")
        self.assertLessEqual(max(verdict["max_relative_error"].values()), 1e-10)
        self.assertEqual(run["losses"], kept["losses"])
        self.assertEqual(run["memory"]["activations"], max(one["activations"] for one in run["predicted"]["memory"]))
        self.assertLessEqual(run["peak_bytes"], limit)
        self.sent_as_predicted(run)
        # What was chosen is kept.
        index = json.loads((self.folder / "ck/step-00000002/index.json").read_text())["index"]
        self.assertEqual(index["chosen"]["recompute"], {"fit": limit, "stages": stages})
        # A run that goes on says where it chooses anew; the losses are the same.
        goes_on = lambda limit: self.call("run", self.write(head + f'staged(mw.train, {{ fit = {limit} }}, {{ steps = 3, '
                                                            f'resume = {{ from = "ck" }} }})\n')).stderr
        self.assertNotIn("the plan chose anew", goes_on(limit))
        said = goes_on(2 * limit)
        self.assertRegex(said, r"the plan chose anew: recompute \{.*\}, which was \{.*\}; it reads the same tensors")
        loaded = self.call("run", self.write('local mw = require "meshwright"\nlocal run = mw.load("run.h5")\n'
                                             'print(run.plan_description.recompute.stages[1]["mlp.swiglu"])\n'))
        self.assertEqual(loaded.stdout.split(), [str(stages[0]["mlp.swiglu"])], loaded.stderr)
        said = self.call("run", self.write(head + f"staged(mw.plan, {{ fit = {limit} }})\n")).stdout
        line, = [line for line in said.split("\n") if "recompute, to fit" in line]
        self.assertRegex(line, r"mlp\.swiglu in [12], [012], [012], 0.* layers of stages 0 to 3; the same on all stages: .* a step")

    def test_what_fits_a_device_leaves_room_for_what_is_beside_the_program(self):
        plan = """local mw = require "meshwright"
local tp, pp = mw.plugins("tp", "pp")
for _, recompute in ipairs { "fit", { what = "fit", by_stage = false }, { fit = "40GiB" } } do
  for _, memory in ipairs { false, "36GiB" } do
    mw.plan {
      model = mw.gpt { layers = 24, hidden = 4096, heads = 32, vocab = 51200 }, data = mw.synthetic {}, sequence = 2048,
      plan = { pp { 2, layout = "even" }, tp(8) }, batch = 128, microbatch = 32, precision = "bf16", recompute = recompute,
      memory = memory or nil, cluster = mw.cluster("dgx-a100-40", { nodes = 2 }), optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
    }
  end
end
"""
        device, found = 40 << 30, self.all("plan", self.write(plan))
        beside = [result["reported_bytes"] - result["peak_bytes"] for result in found]
        self.assertGreater(min(beside), 1 << 30)
        for result in (found[0], found[2]):  # what the device has, with the driver's and NCCL's bytes
            self.assertLessEqual(result["reported_bytes"], device)
            self.assertGreater(result["reported_bytes"], 0.97 * device)
        for result in (found[1], found[3]):  # memory of the program's own
            self.assertLessEqual(result["peak_bytes"], 36 << 30)
            self.assertGreater(result["peak_bytes"], 0.97 * (36 << 30))
        # What a script says itself is of the program's own bytes.
        self.assertGreater(found[4]["reported_bytes"], device)
        self.assertLessEqual(found[4]["peak_bytes"], device)
        self.all_refused(plan.split("for _")[0], ("""mw.plan {
  model = mw.gpt { layers = 24, hidden = 4096, heads = 32, vocab = 51200 }, data = mw.synthetic {}, sequence = 2048,
  plan = { tp(8) }, batch = 128, microbatch = 128, precision = "bf16", recompute = "fit",
  cluster = mw.cluster("dgx-a100-40", { nodes = 1, device = { memory = "14GiB" } }), optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
}""", 3, "recompute.fit recompute"))

    def test_what_cannot_be(self):
        self.all_refused(HEAD, *((f'e("llama", {{}}, {mode}, mw.plan)', 2, problem) for mode, problem in (
            ('"half"', "option.choice recompute"),
            ('"attention"', "option.choice recompute"),  # an op's name
            ('{ gathers = true, collectives = "keep" }', "option.conflict recompute.gathers"),
            ('{ what = "half" }', "option.choice recompute.what"),
            ('{ what = { "attention" } }', "option.choice recompute.what"),
            ("{ every = 0 }", "option.range recompute.every"),
            ('{ collectives = "keep" }', "option.missing recompute"),
            ('{ every = 1, ops = { "mlp" } }', "option.conflict recompute"),
            ('{ ops = { "mpl" } }', "option.choice recompute.ops"),
            ("function(op) return op.kind end", "function.result recompute"),
            ('"fit"', "option.missing recompute"),
            ('{ what = "fit" }', "option.missing recompute"),
            ('{ "full", what = "selective" }', "option.twice recompute.what"),
            ('{ every = 1, by_stage = false }', "option.conflict recompute.by_stage"),
        )))


if __name__ == "__main__":
    unittest.main(verbosity=2)
