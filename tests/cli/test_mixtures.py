"""Mixtures of data by weights, and several held-out sets: shares as the weights say, the same
samples in every mix and after a resume, and a loss of each set."""

import unittest

import numpy as np
from cases import ProgramCase

SCRIPT = """local mw = require "meshwright"
local dp, tp, pp, zero, sp = mw.plugins("dp", "tp", "pp", "zero", "sp")
local function source(n) return mw.shards { n .. ".bin", dtype = "u8", order = "sequential" } end
local mixed = mw.mixture { { weight = 6, data = source "a" }, { weight = 3, data = source "b" }, { weight = 1, data = source "c" } }
local function experiment(plan, more)
  local all = { model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 24, vocab = 32 }, sequence = 8, plan = plan, batch = 8, microbatch = 2,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 3, data = mixed, precision = "fp64" }
  for key, value in pairs(more or {}) do all[key] = value end
  return all
end
"""


class Mixtures(ProgramCase):
    def setUp(self):
        super().setUp()
        for n, name in enumerate("abc"):
            tokens = 8 * n + np.arange(4097 * 8 + 2) % (n + 1)
            tokens.astype(np.uint8).tofile(self.folder / f"{name}.bin")

    def test_shares_are_those_of_the_weights(self):
        # A rate of zero keeps the model as it is, so a run's mean loss is that of its tokens.
        still = "{ optimizer = mw.sgd { lr = 0 }, batch = 512, microbatch = 64, steps = 8, data = %s }"
        runs = self.all("run", self.write(SCRIPT + "".join(f"mw.train(experiment({{}}, {still % data}))\n"
                                                           for data in ("mixed", 'source "a"', 'source "b"', 'source "c"'))))
        mixed, *alone = [np.mean(run["losses"]) for run in runs]
        self.assertAlmostEqual(mixed, 0.6 * alone[0] + 0.3 * alone[1] + 0.1 * alone[2], delta=1e-4)  # 4,096 samples are a block
        self.assertGreater(np.std(runs[0]["losses"]), 0)                  # shuffled, so steps differ

    def test_each_mix_reads_the_same(self):
        mixes = ("{ dp(2) }", "{ zero { 2, stage = 3 }, tp(2) }", '{ pp { 2, schedule = "zb-h1" } }', "{ sp(2) }")
        calls = "".join(f"mw.verify(experiment({mix}, {{ steps = 2, data = {data} }}))\n" for mix in mixes
                        for data in ("mixed", 'mw.pack { data = mixed, lengths = 3, into = "greedy" }'))
        self.verify_all(SCRIPT + calls)
        of = SCRIPT + "mw.train(experiment({ dp(2) }, { steps = %d, seed = %d, overwrite = true, checkpoint = { path = 'saved' }, %s }))"
        whole = self.only("run", self.write(of % (4, 1, "")))
        self.assertNotEqual(whole["losses"], self.only("run", self.write(of % (4, 2, "")))["losses"])
        self.only("run", self.write(of % (2, 1, "")))
        self.assertEqual(self.only("run", self.write((of % (4, 1, "resume = true")).replace("overwrite = true, ", "")))["losses"], whole["losses"])

    def test_batches_and_sequences_grow_together(self):
        """A rate of zero keeps the model as it is, so a step's loss tells which tokens it has read."""
        tokens = np.random.default_rng(1).integers(0, 32, 4097).astype(np.uint8)
        tokens.tofile(self.folder / "a.bin")
        ramp = "mw.microbatch.ramp { from = 2, by = 2, steps = 6, size = 1, sequence = 8, sequence_by = 8 }"
        more = 'sequence = 24, batch = 8, steps = 8, data = source "a", optimizer = mw.sgd { lr = %s }, checkpoint = { path = "%s", every = 1, keep = 9 }'
        def run(plan, lr, policy=ramp, verb="train", path="saved", extra=""):
            keys = f"{more % (lr, path)}, microbatch = {policy}, overwrite = true {extra}"
            return self.all("run", self.write(SCRIPT + f"mw.{verb}(experiment({plan}, {{ {keys} }}))"))[0]
        grows = run("{}", 0)
        shapes = [(b, s) for b, s in ((2, 8), (2, 8), (4, 8), (4, 16), (6, 16), (6, 16), (8, 24), (8, 24))]
        self.assertEqual(grows["batches"], [b for b, _ in shapes])
        at = 0
        for step, (batch, sequence) in enumerate(shapes):
            first = -(-at // sequence)
            rows = run("{}", 0, f"function(step) return {{ batch = {batch}, sequence = {sequence}, microbatch = 1 }} end")["losses"]
            self.assertEqual(len(rows), 8)
            if first % batch == 0:
                self.assertAlmostEqual(grows["losses"][step], rows[first // batch], delta=1e-12)
            at = (first + batch) * sequence
        trained = run("{}", 1e-1)
        for plan in ("{ dp(2) }", "{ tp(2), sp() }", '{ pp { 2, schedule = "zb-h1" } }', "{ sp(2), zero { 1, stage = 3 } }"):
            with self.subTest(plan):
                np.testing.assert_allclose(run(plan, 1e-1)["losses"], trained["losses"], rtol=1e-12)
                self.assertEqual(run(plan, 1e-1, verb="verify")["verdict"], "equal")
        for step in (3, 5):
            again = run("{ dp(2) }", 1e-1, path="again", extra=f', resume = {{ from = "saved/step-{step:08}" }}')
            np.testing.assert_allclose(again["losses"], trained["losses"], rtol=1e-12)

    def test_each_held_out_set_has_its_loss(self):
        text = SCRIPT + "mw.train(experiment(%s, { data = source 'a', evaluate = { every = 1, batches = 3, data = %s } }))"
        both = self.only("run", self.write(text % ("{}", "{ letters = source 'b', others = source 'c' }")), "--set", 'log="both.h5"')
        import h5py
        with h5py.File(self.folder / "both.h5") as file:
            found = {name.split(".")[-1]: file["series"][name][:] for name in file["series"] if "held_out_loss." in name}
        for name, data in (("letters", "source 'b'"), ("others", "source 'c'")):
            alone = self.only("run", self.write(text % ("{ tp(2) }", data)))
            np.testing.assert_allclose(found[name], [one["loss"] for one in alone["held_out"]], rtol=1e-10)
        np.testing.assert_allclose([one["loss"] for one in both["held_out"]], (found["letters"] + found["others"]) / 2, rtol=1e-10)

    def test_what_cannot_be_right_is_refused(self):
        mixture = "mw.plan(experiment({}, { data = mw.mixture { %s } }))"
        self.all_refused(
            SCRIPT,
            (mixture % "", 2, "option.missing data.sources"),
            (mixture % "{ weight = 1 }", 2, "option.value data.sources[1]"),
            (mixture % "{ weight = 0, data = source 'a' }", 2, "option.value data.sources[1]"),
            (mixture % "{ weight = 1, data = source 'a', part = 1 }", 2, "option.value data.sources[1]"),
            (mixture % "{ weight = 1, data = 7 }", 2, "option.value data.sources[1].data"),
            (mixture % "{ weight = 1, data = source 'a' }, { weight = 1e-5, data = source 'b' }", 2, "option.value data.sources[2]"),
            ("mw.plan(experiment({}, { evaluate = { every = 1, data = {} } }))", 2, "option.value evaluate.data"),
            ("mw.plan(experiment({}, { evaluate = { every = 1, data = { a = 3 } } }))", 2, "option.value evaluate.data.a"))


if __name__ == "__main__":
    unittest.main()
