"""What is predicted is what is run: bytes of parameters, gradients, optimizer state and of every
(axis, op, phase) are exact, activations and the peak within 5 %."""

import unittest

import h5py

from cases import TEST_PLUGINS, ProgramCase

EXACT = ("parameters", "gradients", "optimizer")
BOUND = 0.05

SCRIPT = """\
local mw = require "meshwright"
local dp, zero, tp = mw.plugins("dp", "zero", "tp")
local llama = mw.llama { layers = 3, hidden = 96, heads = 8, kv_heads = 4, ffn = 256, vocab = 256 }
local gpt = mw.gpt { layers = 2, hidden = 96, heads = 8, vocab = 250, tied = true }
local function train(model, mix, microbatch, more)
  local e = {
    model = model, data = mw.synthetic {}, sequence = 64, plan = mix, batch = 16,
    microbatch = microbatch, optimizer = mw.adamw { lr = 1e-3, clip = 1.0 }, steps = 3,
  }
  for key, value in pairs(more or {}) do e[key] = value end
  mw.train(e)
end
train(llama, {})
train(llama, {}, 4)
train(llama, { dp(2) })
train(llama, { dp { 4, bucket = "100KiB" } }, 2)
train(llama, { dp { 4, bucket = "100KiB", overlap = false } }, 1)
train(llama, { tp(2) })
train(llama, { tp(8) }, 8)
train(llama, { dp(2), tp(2) }, 4, { log = "run.h5" })
train(llama, { tp(2), dp(3) }, 2, { batch = 12, precision = "fp64" })
train(llama, { dp(2), tp(4) }, nil, { optimizer = mw.sgd { lr = 1e-2 } })
train(llama, { dp { 2, bucket = "100KiB", hook = "bf16" } }, 2)
train(llama, { dp { 2, hook = dp.powersgd { rank = 2 } }, tp(2) }, 2)
train(llama, { dp { 3, reduce = "each", bucket = "64KiB" } }, 2, { batch = 12 })
train(llama, { dp { 3, bucket = "100KiB" }, mw.plugin("scattered_sum") {} }, 2, { batch = 12 })
train(llama, { zero { 2, stage = 1 }, tp(2) }, 4, { optimizer = mw.muon { lr = 0.02 } })
train(llama, { zero { 2, stage = 3 }, tp(2) }, 4, { optimizer = mw.muon { lr = 0.02, clip = 1.0 }, precision = "bf16" })
train(gpt, { dp(2), tp(2) }, 4, { optimizer = mw.muon { lr = 0.02, adamw = { lr = 1e-3 } } })
train(gpt, {})
train(gpt, { tp(4) }, 4)
train(gpt, { dp(2), tp(2) })
"""


class Predicted(ProgramCase):
    def test_predicted_is_measured(self):
        runs = self.all("run", self.write(SCRIPT), "--plugin-path", TEST_PLUGINS)
        self.assertEqual(len(runs), SCRIPT.count("\ntrain("))
        worst = {"activations": 0, "peak": 0}
        for number, run in enumerate(runs):
            with self.subTest(number=number, plan=run["plan"].splitlines()[0]):
                stage, = run["predicted"]["memory"]
                for category in EXACT:
                    self.assertEqual(run["memory"][category], stage[category], category)
                # Only plain SGD keeps no state.
                self.assertEqual([run["memory"][category] > 0 for category in EXACT], [True, True, number != 9])
                self.sent_as_predicted(run)
                self.assertEqual(bool(run["communication"]), run["ranks"] > 1)
                for name, measured in (("activations", run["memory"]["activations"]), ("peak", run["peak_bytes"])):
                    error = stage[name] / measured - 1
                    worst[name] = max(worst[name], abs(error))
                    self.assertLessEqual(abs(error), BOUND, f"{name}: {stage[name]} predicted, {measured} measured")
        print(", ".join(f"{name} off by {100 * error:.2f} % at most" for name, error in worst.items()))

        # The run file holds both.
        with h5py.File(self.folder / "run.h5", locking=False) as f:
            memory, communication = f["memory"][:], f["communication"][:]
        self.assertEqual({int(r) for r in memory["rank"]}, {0, 1, 2, 3})
        for row in memory:
            measured, predicted = int(row["peak_bytes"]), int(row["predicted_bytes"])
            if row["category"].decode() in EXACT:
                self.assertEqual(measured, predicted, row)
            elif row["category"] in (b"activations", b"total"):
                self.assertLessEqual(abs(predicted - measured), BOUND * measured, row)
        self.assertEqual({int(r) for r in communication["rank"]}, {0, 1, 2, 3})
        self.assertEqual({int(s) for s in communication["step"]}, {0, 1, 2})
        for row in communication:
            self.assertEqual(int(row["bytes"]), int(row["predicted_bytes"]), row)


if __name__ == "__main__":
    unittest.main(verbosity=2)
