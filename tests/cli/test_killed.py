"""Runs that end before their time: killed, interrupted, or failed on a rank. The run file opens and
holds what was finished."""

import json
import os
import random
import signal
import subprocess
import time
import unittest

import h5py
import numpy as np
import pandas

from cases import BIN, TEST_PLUGINS, ProgramCase

KILLS = 4

# `observe` tells of each finished step on stderr.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
mw.train {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { dp(2), tp(2)%s }, batch = 4,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 1000000, log = "run.h5",
  observe = function(step)
    io.stderr:write("finished ", step, "\\n")
    %s
    return { twice = 2 * step }
  end,
}
"""


class Killed(ProgramCase):
    def start(self, observe="", plan=""):
        (self.folder / "script.lua").write_text(SCRIPT % (plan, observe))
        self.stderr = open(self.folder / "stderr", "w+b")
        self.addCleanup(self.stderr.close)
        return subprocess.Popen([BIN, "run", "script.lua", "--json", "--plugin-path", TEST_PLUGINS], cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=self.stderr)

    def finished(self):
        """How many finished steps were told of; whole lines only."""
        lines = (self.folder / "stderr").read_bytes().split(b"\n")[:-1]
        told = [int(line.split(b"finished ")[1]) for line in lines if b"finished " in line]
        self.assertEqual(told, list(range(len(told))))
        return len(told)

    def written(self):
        """How many steps the run file has, for whoever opens it while it grows."""
        with h5py.File(self.folder / "run.h5", "r", locking=False) as f:
            return len(f["steps"])

    def until(self, process, condition):
        while not condition():
            self.assertIsNone(process.poll(), (self.folder / "stderr").read_text())
            time.sleep(0.01)

    def wait_for(self, process, steps):
        self.until(process, lambda: self.finished() >= steps)

    def end(self, process):
        stdout, _ = process.communicate(timeout=300)
        return [json.loads(line) for line in stdout.decode().splitlines()]

    def read(self, status):
        """The number of steps in the run file, read with both readers."""
        path = self.folder / "run.h5"
        with h5py.File(path, locking=False) as f:
            self.assertEqual(f.attrs["schema"], b"meshwright.run/1")
            self.assertEqual(f.attrs["status"], status.encode())
            steps = f["steps"][:]
            self.assertEqual(f["series/twice"].shape[0] if len(steps) else 0, len(steps))
            ranks = f["communication"]["rank"][:]
        self.assertTrue((steps["step"] == np.arange(len(steps))).all())
        self.assertTrue(np.isfinite(steps["loss"]).all())
        if len(steps):
            self.assertEqual(set(ranks.tolist()), {0, 1, 2, 3})
        frame = pandas.read_hdf(path, "steps")
        self.assertEqual(len(frame), len(steps))
        self.assertEqual(frame["loss"].tolist(), steps["loss"].tolist())
        return len(steps)

    def test_killed_at_random_moments(self):
        """The file has what was in it for a reader before the kill, and no step that was not finished."""
        chance = random.Random(5)
        counts = []
        for kill in range(KILLS):
            with self.subTest(kill=kill):
                for old in self.folder.iterdir():
                    old.unlink()
                process = self.start()
                self.wait_for(process, chance.randint(1, 40))
                # Every other one after the file has been written at least once.
                seen = 0
                if kill % 2:
                    self.until(process, lambda: self.written() > 0)
                    self.wait_for(process, self.finished() + chance.randint(1, 40))
                    seen = self.written()
                process.kill()
                process.communicate(timeout=300)
                self.assertEqual(process.returncode, -signal.SIGKILL)
                counts.append((seen, self.read("running"), self.finished()))
                self.assertGreaterEqual(counts[-1][1], seen)
                self.assertLessEqual(counts[-1][1], counts[-1][2] + 1)
        print(f"{KILLS} kills: (steps that a reader saw, that are in the file, that were finished): {counts}")

    def test_interrupted(self):
        process = self.start()
        self.wait_for(process, 5)
        process.send_signal(signal.SIGINT)
        run, = self.end(process)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(run["status"], "interrupted")
        self.assertEqual(run["steps"], self.finished())  # every step that was finished
        self.assertEqual(self.read("interrupted"), run["steps"])

    def test_a_second_interrupt_ends_at_once(self):
        # A step that takes very long: only the second signal can end it.
        process = self.start('if step == 3 then local till = os.time() + 50 while os.time() < till do end end')
        self.wait_for(process, 4)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        begin = time.monotonic()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertLess(time.monotonic() - begin, 30)  # the step goes on for 50
        self.assertIn(process.returncode, (130, -signal.SIGINT))

    def test_a_failed_rank(self):
        # The 18th call of the last norm, over four ranks: in the fifth step, on one rank.
        process = self.start(plan=', mw.plugin "failing_rank" (18)')
        run, error = self.end(process)
        self.assertEqual(process.returncode, 1)
        self.assertEqual((run["kind"], run["status"], run["steps"]), ("train", "failed", 4))
        self.assertEqual((error["kind"], error["stage"]), ("error", "run"))
        self.assertEqual(error["code"], "run.exception")
        self.assertEqual(self.read("failed"), 4)

    def test_a_failed_observer(self):
        process = self.start('if step == 6 then error("that is enough") end')
        run, error = self.end(process)
        self.assertEqual(process.returncode, 1)  # the script was accepted: the run failed
        self.assertEqual((run["status"], error["stage"]), ("failed", "run"))
        self.assertEqual((error["code"], error["line"]), ("script.error", 9))
        path = self.folder / "run.h5"
        with h5py.File(path, locking=False) as f:
            self.assertEqual((f.attrs["status"], len(f["steps"])), (b"failed", 7))


if __name__ == "__main__":
    unittest.main(verbosity=2)
