"""Nothing grows with the steps of a run: neither memory, nor open files, nor threads.

MESHWRIGHT_LEAK_STEPS says how many steps the mixes of the matrix take; tests/nightly says 1000."""

import os
import pathlib
import re
import statistics
import subprocess
import unittest

from cases import BIN, ProgramCase, matrix

BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
STEPS = int(os.environ.get("MESHWRIGHT_LEAK_STEPS", "300"))
EVERY = 10  # steps between two samples
# The first steps fill caches, of the allocator among others, and write the first checkpoints.
WARM = 0.4
# What the second half may take more than the first one. A run keeps the loss of each step, and
# memory comes in pieces: in 1000 steps mixes took 0.4 MiB at most. If one rank of this model lost a
# copy of its parameters in each step, it would take 6 MiB or more.
BYTES, BYTES_A_STEP = 1 << 20, 1024

# The first %s is the plan, the second changes the table. At a sample rank 0 waits for the test, and
# all other ranks for rank 0.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local e = {
  model = mw.llama { layers = 4, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { %s }, batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-3, clip = 1.0 }, steps = %d, timeout = 300,
  check = "replicas", evaluate = { every = 50, batches = 2, data = mw.synthetic {} },
  checkpoint = { path = "checkpoints", every = 50, keep = 2 },
  log = "runs/a.h5", tensorboard = "runs/events",
}
%s
local change = e.observe or function() end
e.observe = function(step)
  change(step)
  if (step + 1) %% %d == 0 then
    io.write("at ", step, "\\n")
    io.flush()
    io.read()
  end
end
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


def sample(pid):
    """Bytes of memory that no file is behind, threads, open files."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) << 10, int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))


class Leaks(ProgramCase):
    def setUp(self):
        super().setUp()
        if re.search("^MESHWRIGHT_SANITIZE:.*=.", (BUILD / "CMakeCache.txt").read_text(), re.M):
            self.skipTest("a sanitizer keeps what is freed for a while")

    def samples(self, plan, more, steps):
        """Those of a run that must succeed, one each EVERY steps."""
        script = self.write(SCRIPT % (plan, steps, more, EVERY))
        with (self.folder / "stderr").open("w") as said, subprocess.Popen(
                [BIN, "run", script, "--quiet", "--set", "overwrite=true"], cwd=self.folder, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=said, text=True) as process:
            found = []
            for line in process.stdout:
                if line.startswith("at "):
                    found.append(sample(process.pid))
                    process.stdin.write("\n")
                    process.stdin.flush()
        self.assertEqual((process.returncode, len(found)), (0, steps // EVERY), (self.folder / "stderr").read_text())
        return found

    def growth(self, found, steps):
        """From the first half after the warm-up to the second: more bytes (medians), threads and files (the most)."""
        warm = found[int(WARM * len(found)):]
        halves = warm[:len(warm) // 2], warm[len(warm) // 2:]
        memory, threads, files = ([[facts[n] for facts in half] for half in halves] for n in range(3))
        grown = statistics.median(memory[1]) - statistics.median(memory[0])
        print(f"{steps} steps: {warm[0][0] >> 10} KiB, {grown / 1024:+.0f} KiB; {max(threads[0])} threads, {max(files[0])} files")
        return grown - BYTES_A_STEP * steps, max(threads[1]) - max(threads[0]), max(files[1]) - max(files[0])

    def flat(self, plan, more, steps):
        bytes_, threads, files = self.growth(self.samples(plan, more, steps), steps)
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
        bytes_, _, files = self.growth(self.samples("dp(2)", keeps, 200), 200)
        self.assertGreater(bytes_, BYTES)
        self.assertGreater(files, 20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
