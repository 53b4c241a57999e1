"""The loss's scale from a script: policies, functions, what is recorded, what is refused."""

import unittest

import h5py

from cases import ProgramCase

SCRIPT = """\
local mw = require "meshwright"
local dp, zero, tp = mw.plugins("dp", "zero", "tp")
local function train(more)
  local e = { model = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 96, vocab = 64 }, data = mw.synthetic {},
              sequence = 16, plan = { zero { 2, stage = 2 }, tp(2) }, batch = 8, microbatch = 2, precision = "fp16",
              optimizer = mw.adamw { lr = 3e-3, clip = 1.0 }, steps = 12 }
  for key, value in pairs(more) do e[key] = value end
  return mw.train(e)
end
train { log = "usual.h5" }
train { loss_scale = { init = 2 ^ 40, backoff = 1 / 64, interval = 4 }, log = "high.h5",
        observe = function(step) return { twice = 2 * step } end }
local calls = {}
train { loss_scale = function(step, scale, overflowed)
  calls[#calls + 1] = ("%d %g %s"):format(step, scale, overflowed)
  if step == 0 then return 2 ^ 45 end
  return overflowed and 1024 or scale
end }
assert(#calls == 12, #calls)
assert(calls[1] == "0 65536 false", calls[1])
assert(calls[2] == "1 3.51844e+13 true", calls[2])
assert(calls[3] == "2 1024 false", calls[3])
train { loss_scale = 512, precision = "fp32", reductions = "fp32" }
train { precision = "fp32" }
train { precision = "bf16", reductions = "fp32" }
"""

VERIFY = """\
local mw = require "meshwright"
local dp, tp, pp = mw.plugins("dp", "tp", "pp")
for _, scale in ipairs { 1024, 65536, 3 * 2 ^ 24 } do
  for _, plan in ipairs { { tp(2) }, { pp { 2, schedule = "zb-h1" }, dp(2) } } do
    mw.verify { model = mw.gpt { layers = 2, hidden = 24, heads = 4, vocab = 50, tied = true }, data = mw.synthetic {},
                sequence = 16, plan = plan, batch = 8, microbatch = 2, precision = "fp16", loss_scale = scale,
                optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  end
end
"""

WRONG = """\
local mw = require "meshwright"
local function given(verb, scale)
  return verb { model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 16, vocab = 16 }, data = mw.synthetic {},
                sequence = 4, batch = 2, steps = 2, optimizer = mw.adamw { lr = 1e-3 }, loss_scale = scale }
end
"""


class LossScale(ProgramCase):
    def series(self, name):
        with h5py.File(self.folder / f"{name}.h5", locking=False) as f:
            return {key: list(f["series"][key]) for key in f["series"]}

    def test_a_scaled_gradient_equals_one_ranks(self):
        # A key's bias has a gradient that is zero but for rounding:
        # it too is measured without the scale.
        self.assertEqual(len(self.verify_all(VERIFY)), 6)

    def test_policies_and_what_is_recorded(self):
        runs = self.all("run", self.write(SCRIPT))
        usual, high, function, fixed, plain, wide = runs
        self.assertEqual((usual["loss_scale"], usual["skipped_steps"]), (65536, []))
        self.assertEqual(self.series("usual")["loss_scale"], [65536] * 12)

        skipped = high["skipped_steps"]
        self.assertEqual(skipped, list(range(len(skipped))))
        self.assertIn(len(skipped), (3, 4))
        series = self.series("high")
        scales = series["loss_scale"]
        self.assertEqual(scales[:4], [2.0**40, 2.0**34, 2.0**28, 2.0**22])
        self.assertEqual(series["skipped"], [1] * len(skipped) + [0] * (12 - len(skipped)))
        self.assertIn(2 * scales[len(skipped)], scales)
        self.assertEqual(series["twice"], [2 * step for step in range(12)])
        self.assertEqual(high["loss_scale"], scales[-1])
        self.assertLess(high["losses"][-1], high["losses"][0])

        self.assertEqual((function["loss_scale"], function["skipped_steps"]), (1024, [0]))
        self.assertEqual((fixed["loss_scale"], fixed["skipped_steps"]), (512, []))
        self.assertNotIn("loss_scale", plain)
        for one, other in zip(fixed["losses"], plain["losses"]):
            self.assertAlmostEqual(one, other, delta=1e-5)
        for one, other in zip(fixed["grad_norms"], plain["grad_norms"]):
            self.assertAlmostEqual(one / other, 1, delta=1e-3)
        self.assertNotIn("loss_scale", wide)
        for run in runs:
            self.sent_as_predicted(run)

    def test_what_is_no_policy_is_refused(self):
        found = self.tried(WRONG, [f"given(mw.plan, {scale})" for scale in ("0", "'static'", "{ interval = 0 }", "{ int = 1 }", "true")])
        for errors in found:
            self.assertTrue(errors and all(e["stage"] == "options" and e["key"].startswith("loss_scale") for e in errors), errors)
        self.all_refused(WRONG, ("given(mw.train, function(step) return -step end)", 2, "function.result loss_scale"))


if __name__ == "__main__":
    unittest.main()
