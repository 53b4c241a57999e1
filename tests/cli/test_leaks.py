"""Nothing grows with the steps of a run: neither memory, nor open files, nor threads.

The plugin `holdings` counts them in the process. MESHWRIGHT_LEAK_STEPS says how many steps the
mixes of the matrix take; tests/nightly says 1000."""

import os
import pathlib
import re
import statistics
import unittest

from cases import TEST_PLUGINS, ProgramCase, matrix

BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
STEPS = int(os.environ.get("MESHWRIGHT_LEAK_STEPS", "300"))
EVERY = 10  # steps between two counts
# The first steps fill caches, and write the first checkpoints.
WARM = 0.4
# What the second half may hold more than the first one. A run keeps the loss of each step, and the
# rows of its file until they are written. If one rank of this model lost a copy of its parameters
# in each step, it would take 6 MiB or more.
BYTES, BYTES_A_STEP = 1 << 20, 1024

# The first %s is the plan, the second changes the table.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep, holdings = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep", "holdings")
local e = {
  model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { %s }, batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-3, clip = 1.0 }, steps = %d, timeout = 300, schedule = holdings(%d),
  check = "replicas", evaluate = { every = 50, batches = 2, data = mw.synthetic {} },
  checkpoint = { path = "checkpoints", every = 50, keep = 2 },
  log = "runs/a.h5", tensorboard = "runs/events", overwrite = true, observe = function() end,
}
%s
mw.train(e)
"""
EXPERTS = "e.model = mw.moe { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64, experts = 4, top_k = 2 }\n"
MIXES = {
    "one rank": ("", ""),
    "all of dp": ("dp(4)", "e.recompute = 'full' e.precision = 'bf16' e.check = true"),
    "three axes": ('pp { 2, schedule = "1f1b" }, zero { 2, stage = 2 }, tp(2)', "e.recompute = 'selective'"),
    "stored shards": ("zero { 2, stage = 3 }, tp(2)", "e.offload = 'full'"),
    "zero bubble": ('pp { 2, schedule = "zb-h1" }, dp(2)', ""),
    "sequence": ("dp(2), sp(2)", "e.optimizer = mw.muon { lr = 1e-3 }"),
    "experts": ("dp(4), ep(2)", EXPERTS),
    "experts in a pipeline": ('pp { 2, schedule = "1f1b" }, zero { 2, stage = 1 }, tp(2), ep(2)', EXPERTS),
}


class Leaks(ProgramCase):
    def setUp(self):
        super().setUp()
        if re.search("^MESHWRIGHT_SANITIZE:.*=.", (BUILD / "CMakeCache.txt").read_text(), re.M):
            self.skipTest("a sanitizer keeps what is freed for a while")

    def counts(self, plan, more, steps):
        """Bytes, threads and open files of a run that must succeed, once each EVERY steps."""
        done = self.call("run", self.write(SCRIPT % (plan, steps, EVERY, more)), "--quiet", "--plugin-path", TEST_PLUGINS)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.findall(r"(?m)^holds (\d+) (\d+) (\d+) (\d+)$", done.stderr)
        self.assertEqual([int(step) for step, *_ in found], list(range(EVERY // 2, steps, EVERY)))
        return [tuple(map(int, facts)) for _, *facts in found]

    def growth(self, found, steps):
        """From the first half after the warm-up to the second: more bytes (medians), threads and files (the most)."""
        warm = found[int(WARM * len(found)):]
        halves = warm[:len(warm) // 2], warm[len(warm) // 2:]
        memory, threads, files = ([[facts[n] for facts in half] for half in halves] for n in range(3))
        grown = statistics.median(memory[1]) - statistics.median(memory[0])
        print(f"{steps} steps: {warm[0][0] >> 10} KiB, {grown / 1024:+.0f} KiB; {max(threads[0])} threads, {max(files[0])} files")
        return grown - BYTES_A_STEP * steps, max(threads[1]) - max(threads[0]), max(files[1]) - max(files[0])

    def flat(self, plan, more, steps):
        bytes_, threads, files = self.growth(self.counts(plan, more, steps), steps)
        self.assertLess(bytes_, BYTES)
        self.assertLessEqual(threads, 1)  # one that writes a checkpoint may have begun
        self.assertLessEqual(files, 2)  # and its file, and the run file

    def test_a_mix_of_three_axes(self):
        self.flat(*MIXES["three axes"], 200)

    @matrix
    def test_mixes(self):
        for name, (plan, more) in MIXES.items():
            with self.subTest(name):
                self.flat(plan, more, STEPS)

    def test_what_leaks_is_found(self):
        """A script that keeps 64 KiB and an open file of each step."""
        keeps = "local kept = {} e.observe = function(step) kept[#kept + 1] = { ('x'):rep(65536) .. step, io.open(arg[0]) } end"
        bytes_, _, files = self.growth(self.counts("dp(2)", keeps, 200), 200)
        self.assertGreater(bytes_, BYTES)
        self.assertGreater(files, 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
