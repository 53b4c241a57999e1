"""Activation offload: gradients are those of a run that keeps everything on the device, whatever
goes and in every mix; what lies on the device and in host memory is what is predicted."""

import unittest

from cases import MODELS, ProgramCase, matrix

HEAD = MODELS + """local modes = {
  "full", { layers = 1 }, { ops = { "attention", "rms_norm" } }, { least = 500, prefetch = 1 },
  function(op) return op.layer % 2 == 0 and op.kind ~= "attention" end,
}
local function e(model, plan, offload, recompute, verb)
  return verb { model = models[model], data = mw.synthetic {}, sequence = verb == mw.train and 256 or 12, plan = plan,
    batch = 4, microbatch = 1, offload = offload, recompute = recompute, threads = 1,
    optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 1 }
end
"""

MIXES = HEAD + """
local mixes = {
  {}, { dp(2) }, { tp(2) }, { tp(2), sp() }, { zero { 2, stage = 3 } }, { sp(2) }, { sp { 2, form = "ulysses" } },
  { sp { 2, form = "allgather" }, tp(2) },
  { pp { 2, schedule = "gpipe" } }, { pp { 2, schedule = "1f1b" } }, { pp { 2, schedule = "zb-h1" }, tp(2) },
  { pp { 2, schedule = "zbv" } }, { pp { 2, schedule = "interleaved", chunks = 2 }, zero { 2, stage = 2 } },
}
local experts = { { dp(2), ep(2) }, { dp(2), tp(2), ep(4) }, { pp(2), zero { 2, stage = 3 }, ep(2) } }
local again = { "none", "selective", "full", { what = "none", gathers = true } }
for m, mode in ipairs(modes) do
  for i, mix in ipairs(mixes) do
    e("llama", mix, mode, "none", mw.verify)
    e("llama", mix, mode, again[2 + (m + i) % 3], mw.verify)
  end
  for i, mix in ipairs(experts) do
    e("moe", mix, mode, "none", mw.verify)
    e("moe", mix, mode, again[2 + (m + i) % 3], mw.verify)
  end
end
for _, mix in ipairs(mixes) do e("gpt", mix, "full", "none", mw.verify) end
"""


class Offload(ProgramCase):
    @matrix
    def test_every_mode_and_mix_equals_one_rank(self):
        results = self.verify_all(MIXES)
        self.assertGreater(len(results), 150)

    def ran(self, *cases):
        """Of each case (model, plan, mode, recompute): the result, which is as predicted."""
        script = "".join(f'e("{model}", {plan}, {mode}, {again}, mw.train)\n' for model, plan, mode, again in cases)
        return [self.as_predicted(result) for result in self.all("run", self.write(HEAD + script))]

    def as_predicted(self, result):
        ranks = result["predicted"]["memory"]
        most = lambda what: max(rank[what] for rank in ranks)
        self.assertEqual(result["memory"]["host"], most("host"))
        self.assertEqual(result["memory"]["activations"], most("activations"))
        self.sent_as_predicted(result)
        return result

    def test_less_lies_on_the_device(self):
        plans = [(model, plan) for model in ("llama", "gpt")
                 for plan in ("{}", "{ tp(2), sp() }", "{ sp(2) }", '{ pp { 2, schedule = "1f1b" } }',
                              '{ pp { 2, schedule = "zb-h1" } }', "{ zero { 2, stage = 3 } }")]
        modes = ('"none"', "{ layers = 1 }", '"full"', "{ prefetch = 1 }")
        runs = iter(self.ran(*((*plan, mode, '"none"') for plan in plans for mode in modes)))
        for plan, kept, part, full, ahead in zip(plans, runs, runs, runs, runs):
            with self.subTest(plan):
                self.assertEqual(kept["losses"], part["losses"])
                self.assertEqual(kept["losses"], full["losses"])
                self.assertEqual(kept["memory"]["host"], 0)
                on_device = [r["memory"]["activations"] for r in (kept, part, ahead, full)]
                self.assertEqual(on_device, sorted(on_device, reverse=True))
                self.assertLess(on_device[1], on_device[0])
                self.assertLess(on_device[3], 0.8 * on_device[0])
                self.assertLess(part["memory"]["host"], full["memory"]["host"])
                self.assertEqual(ahead["memory"]["host"], full["memory"]["host"])
                self.assertLess(full["peak_bytes"], kept["peak_bytes"])

    def test_beside_recompute_what_enters_a_layer_goes(self):
        kept, both = self.ran(*(("llama", "{ tp(2) }", mode, '"full"') for mode in ('"none"', '"full"')))
        self.assertEqual(kept["losses"], both["losses"])
        # 256 tokens, 24 wide, in fp32, for each of 4 layers; the rotary tables, 6 wide, for all.
        self.assertEqual(both["memory"]["host"], 4 * 256 * 24 * 4 + 2 * 256 * 6 * 4)
        self.assertLess(both["memory"]["activations"], kept["memory"]["activations"])

    def test_plans_say_what_goes(self):
        plan = self.call("plan", "--program", self.write(HEAD + 'e("llama", {}, "full", "none", mw.plan)'))
        self.assertEqual(plan.returncode, 0, plan.stderr)
        for words in ("offload: ", " go to host memory", "copy     host layers.0.mlp.gate <- layers.0.mlp.gate",
                      "copy     layers.0.mlp.gate <- host layers.0.mlp.gate"):
            self.assertIn(words, plan.stdout)
        plan = self.call("plan", self.write(HEAD + 'e("llama", {}, { least = "1GiB" }, "none", mw.plan)'))
        self.assertIn("nothing that forward keeps goes to host memory", plan.stdout)

    def test_what_cannot_be(self):
        self.all_refused(HEAD, *((f'e("llama", {{}}, {mode}, "none", mw.plan)', 2, problem) for mode, problem in (
            ('"half"', "option.choice offload"),
            ("{ layers = 0 }", "option.range offload.layers"),
            ("{ layers = 5 }", "option.range offload.layers"),
            ('{ least = "much" }', "option.type offload.least"),
            ("{ layers = 1, ops = { \"mlp\" } }", "option.conflict offload"),
            ('{ ops = { "mpl" } }', "option.choice offload.ops"),
            ("function(op) return op.kind end", "function.result offload"),
        )))


if __name__ == "__main__":
    unittest.main(verbosity=2)
