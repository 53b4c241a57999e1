"""Logs: whose they are, what is refused, two processes with one, and the run folder."""
import hashlib
import json
import signal
import subprocess
import time
import unittest

import h5py

from cases import BIN, SCRIPT, ProgramCase
from problems import problems


class Logs(ProgramCase):
    def digest(self, name="runs/a.h5"):
        return hashlib.sha256((self.folder / name).read_bytes()).hexdigest()

    def write_script(self, more="", log="runs/a.h5"):
        return self.script("dp(2)", f'e.log = "{log}"\n{more}')

    def refused_with(self, problem, *arguments):
        """Refused before anything is trained, or the file touched."""
        before = self.digest()
        line = self.refused(2, problem, "run", *arguments)
        self.assertEqual(self.digest(), before)
        self.assertEqual([p.name for p in (self.folder / "runs").iterdir() if p.name.startswith(".")], [])
        return line

    def test_another_experiments_is_refused(self):
        self.all("run", self.write_script())
        line = self.refused_with("log.taken log", self.script("dp(2)", 'e.log = "runs/a.h5"'), "--set", "steps=2")
        self.assertIn('log = "runs/{name}-{seed}-{hash}.h5"', line["hint"])
        line = self.refused_with("log.taken log", self.script("tp(2)", 'e.log = "runs/a.h5"'))
        self.assertIn("another experiment's: dp(2)", line["message"])
        self.assertIn('log = "runs/{name}-{seed}.h5"', line["hint"])
        # As the hint says; and each of them.
        run = self.only("run", self.write_script(log="runs/{name}-{seed}.h5"), "--set", "steps=2")
        self.assertEqual(run["log"], "runs/dp2-0.h5")
        run = self.only("run", self.write_script(), "--set", "steps=2", "--set", "log=runs/{hash}.h5")
        self.assertEqual(run["log"], f'runs/{run["hash"]}.h5')
        run = self.only("run", self.write_script("e.overwrite = true"), "--set", "steps=2")
        with h5py.File(self.folder / "runs/a.h5") as file:
            self.assertEqual(len(file["steps"]), 2)
        self.refused(2, "log.word log", "run", self.write_script(log="runs/{nam}.h5"))

    def test_its_own_is_replaced(self):
        script = self.write_script()
        first = self.only("run", script)
        done = self.call("run", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("runs/a.h5 is replaced: an earlier run of this experiment (done", done.stderr)
        self.assertEqual(self.only("run", script, "--set", "name=other")["hash"], first["hash"])
        self.assertEqual([p.name for p in (self.folder / "runs").iterdir()], ["a.h5"])

    def test_what_was_done_outlives_a_rerun_that_is_killed(self):
        script = self.write_script("e.observe = function(step) if io.open('slow') then while true do end end end")
        first, kept = self.only("run", script), self.folder / "runs/a.earlier.h5"
        (self.folder / "slow").touch()
        for _ in range(2):  # nor does the second put what the first left in its place
            again = self.started(script)
            again.kill()
            again.communicate()
            with h5py.File(kept) as file:
                self.assertEqual((bytes(file.attrs["status"]).decode().rstrip("\0"), len(file["steps"])),
                                 ("done", first["steps"]))
        (self.folder / "slow").unlink()
        self.only("run", script)
        self.assertFalse(kept.exists())

    def test_twice_in_one_script(self):
        again = "mw.train(e) e.plan = { dp(2) }\n"
        done = self.call("run", self.write_script(again), "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(problems(self.lines(done)), ["log.twice log"])
        self.all("run", self.write_script("e.overwrite = true " + again))
        runs = self.all("run", self.write_script("mw.train(e) e.seed = 1\n", log="runs/{name}-{seed}.h5"))
        self.assertEqual([run["log"] for run in runs], ["runs/dp2-0.h5", "runs/dp2-1.h5"])

    def test_files_of_others(self):
        (self.folder / "runs").mkdir()
        with h5py.File(self.folder / "runs/a.h5", "w") as file:
            file.attrs["schema"] = "meshwright.run/1"  # of a version that wrote no hash
        self.assertIn("wrote no hash", self.refused_with("log.taken log", self.write_script())["message"])
        with h5py.File(self.folder / "runs/a.h5", "w") as file:
            file["x"] = [1]
        self.refused_with("log.taken log", self.write_script())
        with open(self.folder / "runs/a.h5", "r+b") as file:  # a damaged one
            file.seek(16)
            file.write(b"\xff" * 80)
        message = self.refused_with("log.taken log", self.write_script())["message"]
        self.assertIn("cannot be read, so that nobody knows whose it is: run file ", message)

    def started(self, script):
        """A run that goes on, once it has written its file."""
        path = self.folder / "runs/a.h5"
        before = path.stat().st_ino if path.exists() else None
        process = subprocess.Popen([BIN, "run", script, "--json"], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        while not path.exists() or path.stat().st_ino == before:
            self.assertIsNone(process.poll(), "it ended too soon")
            time.sleep(0.02)
        return process

    def test_two_processes(self):
        script = self.write_script("e.steps = 1000000")
        first = self.started(script)
        done = self.call("run", script, "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(problems(self.lines(done)), ["log.in-use log"])
        self.assertIn(f"process {first.pid}", self.lines(done)[0]["message"])
        done = self.call("run", self.write_script("e.steps = 5 e.overwrite = true"), "--json")
        self.assertEqual(problems(self.lines(done)), ["log.in-use log"])
        first.send_signal(signal.SIGINT)
        out, _ = first.communicate(timeout=300)
        run = json.loads(out.splitlines()[-1])
        self.assertEqual(run["status"], "interrupted")
        with h5py.File(self.folder / "runs/a.h5") as file:
            self.assertEqual(len(file["steps"]), run["steps"])

    def test_a_killed_run_blocks_nobody(self):
        script = self.write_script("e.steps = 1000000")
        first = self.started(script)
        first.kill()
        first.communicate()
        self.refused(2, "log.taken log", "run", self.write_script("e.steps = 3"))
        # A rerun of what was killed.
        again = self.started(self.write_script("e.steps = 1000000"))
        again.send_signal(signal.SIGTERM)
        self.assertEqual(json.loads(again.communicate(timeout=300)[0].splitlines()[-1])["status"], "interrupted")
        self.assertEqual(sorted(p.name for p in (self.folder / "runs").iterdir()), ["a.earlier.h5", "a.h5"])

    def test_run_folder(self):
        script = self.write_script(log="runs/{name}/")
        run = self.only("run", script)
        folder = self.folder / "runs/dp2"
        self.assertEqual((run["folder"], run["log"]), ("runs/dp2/", "runs/dp2/run.h5"))
        self.assertEqual(sorted(p.name for p in folder.iterdir()),
                         ["experiment.json", "machine.json", "output.txt", "plan.txt", "result.json", "run.h5", "script.lua"])
        self.assertEqual((folder / "script.lua").read_text(), script.read_text())
        self.assertEqual(json.loads((folder / "experiment.json").read_text()), run["experiment"])
        self.assertEqual(json.loads((folder / "result.json").read_text()), run)
        self.assertEqual((folder / "plan.txt").read_text(), run["plan"])
        self.assertIn("done after 4 of 4 steps", (folder / "output.txt").read_text())
        machine = json.loads((folder / "machine.json").read_text())
        self.assertLessEqual({"host", "os", "cpu", "cores", "memory", "instruction_set", "versions", "plugins"}, machine.keys())
        self.assertEqual(machine["plugins"].keys(), {"dp"})
        self.refused(2, "log.taken log", "run", script, "--set", "steps=3", "--set", "log=runs/dp2/")
        # Files of somebody else's.
        mine = self.folder / "mine"
        mine.mkdir()
        (mine / "script.lua").write_text("-- years of work")
        self.refused(2, "log.foreign log", "run", self.write_script(log="mine/"))
        self.assertEqual((mine / "script.lua").read_text(), "-- years of work")


if __name__ == "__main__":
    unittest.main(verbosity=2)
