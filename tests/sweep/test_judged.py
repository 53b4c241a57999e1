# label: cli
"""Sweeps with same_loss_as: mixes that are right over a hundred steps, and such with one fault put
in, which losses alone may hide."""
import json
import unittest

from cases import TEST_PLUGINS, UNPROVED, ProgramCase

SCRIPT = """\
local mw = require "meshwright"
local dp, zero, tp, pp, sp, faults, misbehaving = mw.plugins("dp", "zero", "tp", "pp", "sp", "faults", "misbehaving")
mw.sweep {
  name = "judged",
  base = {
    model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
    data = mw.text { "gcide", sequence = 32 }, batch = 8, microbatch = 2, threads = 1, precision = "%s",
    optimizer = mw.adamw { lr = 3e-3 }, steps = %d, %s
  },
  over = { plan = { reference = { dp(2) }, %s } },
  same_loss_as = "reference",
}
"""
RIGHT = """zero3 = { zero { 2, stage = 3 } }, tp2 = { tp(2) }, sequence = { tp(2), sp() },
  pipeline = { pp { 2, schedule = "zb-h1" } }"""
WRONG = """scaled = { dp(2), misbehaving("scale") }, doubled = { dp(2), faults("loss_scale") },
  norm = { tp(2), sp(), faults { "missing_gradient_reduction", at = "layers.0.mlp_norm" } },
  microbatch = { dp(2), faults("microbatch_weight") },"""


class Judged(ProgramCase):
    def rows(self, *values):
        self.write(SCRIPT % values)
        done = self.call("sweep", "script.lua", "--json", "--plugin-path", TEST_PLUGINS, **UNPROVED)
        rows = {row["name"]: row for row in self.lines(done) if row["kind"] == "cell"}
        self.assertEqual(len(rows), 1 + values[-1].count("= {"), done.stderr)
        return rows

    def test_right_ones(self):
        for precision in ("fp32", "bf16"):
            for name, row in self.rows(precision, 100, "", RIGHT).items():
                with self.subTest(f"{name} in {precision}"):
                    self.assertEqual((row["status"], len(row["losses"])), ("done", 100), row.get("reason"))
                    if name != "reference":
                        found = row["same_loss_as"]
                        print(f"{precision} {name}: losses {found['difference']:.1e}, norms {found['norm_difference']:.1e}")
                        self.assertTrue(found["compared"])
                        self.assertLess(found["norm_difference"], found["norm_tolerance"] / 4)

    def test_wrong_ones(self):
        """Adam trains two of these like the reference, and a warm-up a third; each is wrong all the same."""
        for name, row in self.rows("fp32", 12, "schedule = mw.cosine { warmup = 10 },", WRONG).items():
            with self.subTest(name):
                right = name == "reference"
                self.assertEqual(row["status"], "done" if right else "failed", json.dumps(row.get("same_loss_as")))
                if not right:
                    self.assertTrue(row["reason"].startswith("trains differently: "), row["reason"])
                    self.assertGreater(row["same_loss_as"]["norm_difference"], 2e-5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
