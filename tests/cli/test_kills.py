"""Trainings that are killed again and again, while they start, compute, and write checkpoints:
nothing hangs, no checkpoint is lost, the run file can be read, and what comes out in the end are
the losses of a run that nobody killed.

MESHWRIGHT_KILLS=50 kills so many times, half of them a process of several; the normal run makes a
few."""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import unittest

import h5py

from cases import BIN, ProgramCase

KILLS = int(os.environ.get("MESHWRIGHT_KILLS", "6"))
SEED = int(os.environ.get("MESHWRIGHT_KILLS_SEED", "18"))
AFTER_KILL = 300  # seconds for the others of a run to end: of a loaded machine

SCRIPT = """\
local mw = require "meshwright"
local dp, tp, zero = mw.plugins("dp", "tp", "zero")
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { %s }, batch = 8, precision = "fp64",
  optimizer = mw.adamw { lr = 1e-3 }, steps = %d, log = "%s.h5",
  checkpoint = { path = "%s", every = %d, keep = 2 }, resume = true,
}
"""
PLANS = {"threads": "dp(2), tp(2)", "processes": "zero { 2, stage = 2 }, tp(2)"}


class Kills(ProgramCase):
    def script(self, plan, steps, name, every):
        path = self.folder / f"{name}.lua"
        path.write_text(SCRIPT % (plan, steps, name, name, every))
        return path.name

    def command(self, script, processes):
        command = [BIN, "run", script, "--json", "--quiet"]
        if processes > 1:
            command += ["--processes", str(processes)]
        return command

    def checkpoints(self, name):
        """Steps of those that are there by name: of which each must be whole."""
        return sorted(int(path.name.split("-")[1]) for path in (self.folder / name).glob("step-*"))

    def rows(self, name):
        """The run file's losses, which must be of steps without a gap; nothing if there is no file yet."""
        path = self.folder / f"{name}.h5"
        if not path.exists():
            return []
        with h5py.File(path, locking=False) as f:
            steps = list(f["steps"]["step"][:])
            self.assertEqual(steps, list(range(len(steps))))
            return list(f["steps"]["loss"][:])

    def members(self, process):
        """Processes of a run: those that `process` has started, and theirs; itself if there are none."""
        found, new = [], [process.pid]
        while new:
            pid = new.pop()
            try:
                children = [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                            for child in (task / "children").read_text().split()]
            except OSError:
                continue
            found += children
            new += children
        ranks = []
        for pid in found:
            try:
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(BIN):
                    ranks.append(pid)
            except OSError:
                continue
        return ranks or [process.pid]

    def wait_for_a_moment(self, process, name, longest):
        """Anywhere in a run's first steps and before, or in the middle of a checkpoint that it writes."""
        writes = self.random.random() < 0.5
        end = time.monotonic() + (120 if writes else self.random.uniform(0, longest))
        folder = self.folder / name
        while process.poll() is None and time.monotonic() < end:
            if writes and folder.exists() and any(not p.name.startswith("step-") and p.is_dir() for p in folder.iterdir()):
                time.sleep(self.random.uniform(0, 0.01))
                return "while it wrote a checkpoint"
            time.sleep(0.0002 if writes else 0.002)
        return "at some moment"

    def kill_again_and_again(self, processes, kills):
        plan, every = PLANS["threads" if processes == 1 else "processes"], 5
        steps = 40 + 20 * kills
        alone = self.script(plan, steps, "alone", 10 ** 6)
        done = self.call(*self.command(alone, processes)[1:])
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        reference = json.loads(done.stdout.splitlines()[0])
        longest, expected = reference["startup_seconds"] + 30 * reference["step_seconds"], reference["losses"]
        script = self.script(plan, steps, "killed", every)
        newest, moments, finished = -1, [], 0
        for kill in range(kills):
            process = subprocess.Popen(self.command(script, processes), cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
            moment = self.wait_for_a_moment(process, "killed", longest)
            if process.poll() is None:
                victim = self.random.choice(self.members(process))
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                moments.append(moment)
            else:
                finished += 1
            try:
                stdout, stderr = process.communicate(timeout=AFTER_KILL)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                self.fail(f"kill {kill} ({moment}): the run hangs\n{process.communicate()[1][-3000:]}")
            with self.subTest(kill=kill, moment=moment):
                there = self.checkpoints("killed")
                self.assertGreaterEqual(there[-1] if there else -1, newest, "a checkpoint is lost")
                newest = there[-1] if there else -1
                rows = self.rows("killed")
                # What is recorded of a run is what the other one computed.
                self.assertEqual(rows, expected[:len(rows)], stderr[-3000:])
            if finished:
                shutil.rmtree(self.folder / "killed", ignore_errors=True)
                finished, newest = 0, -1
        run = self.call(*self.command(script, processes)[1:])
        self.assertEqual(run.returncode, 0, run.stderr[-3000:])
        self.assertEqual(self.rows("killed"), expected)
        writing = sum("checkpoint" in moment for moment in moments)
        print(f"{len(moments)} kills, {processes} process(es), {writing} of them while a checkpoint was written; newest before the "
              f"last start: step {newest} of {steps}")

    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)

    def test_a_process_of_threads(self):
        self.kill_again_and_again(1, KILLS - KILLS // 2)

    @unittest.skipUnless("MESHWRIGHT_KILLS" in os.environ, "many minutes where other work runs beside it: asked for by MESHWRIGHT_KILLS")
    def test_one_process_of_several(self):
        self.kill_again_and_again(2, KILLS // 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
