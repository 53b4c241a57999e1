"""What is predicted is what is run: bytes of parameters, gradients, optimizer state and of every
(axis, op, phase) are exact, activations and the peak within 5 %."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import h5py

BIN = os.environ["MESHWRIGHT_BIN"]
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
train(llama, { dp { 2, hook = "powersgd", hook_rank = 2 }, tp(2) }, 2)
train(llama, { dp { 3, reduce = "each", bucket = "64KiB" } }, 2, { batch = 12 })
train(llama, { dp { 3, bucket = "100KiB" }, mw.plugin("scattered_sum") {} }, 2, { batch = 12 })
train(llama, { zero { 2, stage = 1 }, tp(2) }, 4, { optimizer = mw.muon { lr = 0.02 } })
train(llama, { zero { 2, stage = 3 }, tp(2) }, 4, { optimizer = mw.muon { lr = 0.02, clip = 1.0 }, precision = "bf16" })
train(gpt, { dp(2), tp(2) }, 4, { optimizer = mw.muon { lr = 0.02, adamw = { lr = 1e-3 } } })
train(gpt, {})
train(gpt, { tp(4) }, 4)
train(gpt, { dp(2), tp(2) })
"""


def book(communication):
    return {(c["axis"], c["op"], c["phase"]): (c["calls"], c["bytes"]) for c in communication}


class Predicted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(cls.folder.name)
        (path / "script.lua").write_text(SCRIPT)
        done = subprocess.run([BIN, "run", "script.lua", "--json", "--plugin-path", os.environ["MESHWRIGHT_TEST_PLUGINS"]], cwd=path, capture_output=True, text=True,
                              timeout=300)
        assert done.returncode == 0, done.stderr
        cls.runs = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(cls.runs) == SCRIPT.count("\ntrain("), done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def each(self, check):
        for number, run in enumerate(self.runs):
            with self.subTest(number=number, plan=run["plan"].splitlines()[0]):
                check(run, run["predicted"]["memory"][0])

    def test_held_bytes_are_exact(self):
        def check(run, stage):
            self.assertEqual(len(run["predicted"]["memory"]), 1)
            self.assertGreater(run["memory"]["parameters"], 0)
            self.assertGreater(run["memory"]["gradients"], 0)
            for category in EXACT:
                self.assertEqual(run["memory"][category], stage[category], category)
        self.each(check)
        # Only plain SGD keeps no state.
        self.assertEqual([n for n, run in enumerate(self.runs) if run["memory"]["optimizer"] == 0], [9])

    def test_sent_bytes_are_exact(self):
        def check(run, _):
            measured = book(run["communication"])
            self.assertEqual(measured, book(run["predicted"]["communication"]))
            self.assertEqual(bool(measured), run["ranks"] > 1)
        self.each(check)

    def test_activations_and_peak_are_near(self):
        worst = {"activations": 0, "peak": 0}

        def check(run, stage):
            for name, measured in (("activations", run["memory"]["activations"]), ("peak", run["peak_bytes"])):
                error = stage[name] / measured - 1
                worst[name] = max(worst[name], abs(error))
                self.assertLessEqual(abs(error), BOUND, f"{name}: {stage[name]} predicted, {measured} measured")
        self.each(check)
        print(", ".join(f"{name} off by {100 * error:.2f} % at most" for name, error in worst.items()))

    def test_the_run_file_holds_both(self):
        with h5py.File(pathlib.Path(self.folder.name) / "run.h5", locking=False) as f:
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
