"""run --max-restarts: what is started again, what is not, and what is told of it."""
import json
import shutil
import signal
import subprocess
import time
import unittest

import h5py

from cases import BIN, ProgramCase
from restarts import restart_script


class Restarts(ProgramCase):
    def restart(self, changes, *arguments, restarts=3):
        self.write(restart_script("dp(2), tp(2)", changes))
        done = self.call("run", "script.lua", "--json", "--max-restarts", restarts, *arguments)
        self.stderr = done.stderr
        return done.returncode, self.lines(done)

    def starts(self):
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def events(self, kind):
        with h5py.File(self.folder / "a.h5", locking=False) as f:
            return [e["message"].decode() for e in f["events"][:] if e["kind"] == kind.encode()]

    def test_a_run_that_is_killed(self):
        code, (run,) = self.restart("e.observe = function(step) if starts() < 3 and step == 2 then kill() end end")
        self.assertEqual((code, run["status"], run["restarts"], self.starts()), (0, "done", 2, 3), self.stderr[-2000:])
        self.assertIn("restart 1 of 3 in 1 s: its process was ended by SIGKILL", self.stderr)
        self.assertIn("restart 2 of 3 in 2 s: its process was ended by SIGKILL", self.stderr)
        self.assertEqual(self.events("restarted")[-1], "restart 2 of 3, after: its process was ended by SIGKILL")

    def test_other_settings_and_too_many(self):
        code, lines = self.restart(
            'e.checkpoint = { path = "checkpoints", every = 2 } e.steps = 40 '
            "e.observe = function(step) if step == starts() * 5 then error('fault ' .. starts()) end end",
            "--restart-with", "plan={dp(1)}", "--restart-with", "log=b-{seed}.h5", restarts=2)
        runs = [line for line in lines if line["kind"] == "train"]
        self.assertEqual((code, [run["ranks"] for run in runs]), (1, [4, 1, 1]), self.stderr[-2000:])
        self.assertEqual([run.get("restarts") for run in runs], [None, 1, 2])
        self.assertIn("not started again: 2 of 2 restarts used up; it failed: ", self.stderr)
        # Each start went on from the checkpoint before the fault.
        self.assertEqual([run["resumed"]["step"] for run in runs[1:]], [4, 10])

    def test_it_goes_on_from_its_own_checkpoints(self):
        """What other runs have left in the folder is not this training's past."""
        kept = 'e.checkpoint = { path = "checkpoints", every = 1 } e.log = nil '
        # When `observe` has step N, the checkpoint of N - 1 steps is complete; that of N may be.
        killed = "e.observe = function(step) if starts() == 1 and step == %d then kill() end end"
        larger = "e.model = mw.llama { layers = 1, hidden = 64, heads = 4, ffn = 64, vocab = 64 } e.overwrite = true "
        for before, more, steps in (
                # The same experiment's, by another mix.
                ("", killed % 2, (1, 2)),
                # One of them is that from which the first start goes on.
                ("e.steps = 2", 'e.resume = { from = "checkpoints/step-00000002" } ' + killed % 4, (3, 4)),
                ("", 'e.resume = { from = "checkpoints/step-00000002" } e.overwrite = true ' + killed % 4, (3, 4)),
                # Another experiment's, and there is none of this one's yet; then there are some.
                ("", larger + "e.checkpoint.every = 3 " + killed % 1, (None,)),
                ("", larger + killed % 2, (1, 2))):
            with self.subTest(more):
                shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
                self.write(restart_script("dp(4)", kept + before))
                done = self.call("run", "script.lua", "--json")
                self.assertEqual(done.returncode, 0, done.stderr[-2000:])
                (self.folder / "starts").unlink()
                code, (run,) = self.restart(kept + more)
                self.assertEqual((code, run["status"], self.starts()), (0, "done", 2), self.stderr[-2000:])
                self.assertIn(run.get("resumed", {}).get("step"), steps, self.stderr[-2000:])
                (self.folder / "starts").unlink()

    def test_another_plan_before_the_first_checkpoint(self):
        """The log is this command's own, although the plan is another one."""
        code, (run,) = self.restart("e.observe = function(step) if starts() == 1 and step == 1 then kill() end end",
                                    "--restart-with", "plan={dp(1)}")
        self.assertEqual((code, run["status"], run["ranks"], self.starts()), (0, "done", 1, 2), self.stderr[-2000:])

    def test_what_is_not_started_again(self):
        for change, exit_code, starts, said in (
                # A fault that comes again.
                ("e.observe = function(step) if step == 3 then error('always') end end", 1, 2, "it has failed so twice, at the same step"),
                ("e.optimizer = mw.sgd { lr = 1e30 }", 1, 1, "NaN comes up again"),
                ("e.optimizer = mw.sgd { lr = 1e30 } e.check = true", 1, 1, "NaN comes up again"),
                ("error('a mistake')", 2, 1, "exit code 2 is no run that failed"),
                ("e.plan = { dp(3) }", 3, 1, "exit code 3 is no run that failed")):
            with self.subTest(change):
                for file in ("starts", "a.h5"):
                    (self.folder / file).unlink(missing_ok=True)
                code, _ = self.restart(change)
                self.assertEqual((code, self.starts()), (exit_code, starts), self.stderr[-2000:])
                self.assertIn("not started again: " + said, self.stderr)

    def test_who_starts_it_may_ignore_the_ends_of_processes(self):
        """A command inherits that SIGCHLD is ignored; the exit codes of its own processes must not be lost."""
        for change, code, starts in (("error('a mistake')", 2, 1),
                                     ("e.observe = function(step) if starts() < 2 then kill() end end", 0, 2)):
            with self.subTest(change):
                for file in ("starts", "a.h5"):
                    (self.folder / file).unlink(missing_ok=True)
                self.write(restart_script("dp(2), tp(2)", change))
                done = subprocess.run([BIN, "run", "script.lua", "--max-restarts", "2"], cwd=self.folder, capture_output=True,
                                      text=True, timeout=600, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
                self.assertEqual((done.returncode, self.starts()), (code, starts), done.stderr[-2000:])

    def test_signals_reach_the_run(self):
        """Also those that were blocked when the program started, which a command inherits."""
        self.write(restart_script("dp(2), tp(2)", "e.steps = 1000000 e.observe = function(step) io.stderr:write('at ', step, '\\n') end"))
        for blocked in (set(), {signal.SIGTERM}):
            with self.subTest(blocked):
                for file in ("starts", "a.h5"):
                    (self.folder / file).unlink(missing_ok=True)
                process = subprocess.Popen([BIN, "run", "script.lua", "--json", "--max-restarts", "3"], cwd=self.folder,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           preexec_fn=lambda blocked=blocked: signal.pthread_sigmask(signal.SIG_BLOCK, blocked))
                self.addCleanup(process.kill)
                for line in process.stderr:
                    if line.strip() == "at 2":
                        break
                process.send_signal(signal.SIGTERM)
                stdout, _ = process.communicate(timeout=300)
                run, = [json.loads(line) for line in stdout.splitlines()]
                self.assertEqual((process.returncode, run["status"], self.starts()), (130, "interrupted", 1))
                self.assertIn("SIGTERM", run["reason"])

    def test_a_signal_while_it_waits(self):
        self.write(restart_script("dp(2), tp(2)", "kill()"))
        process = subprocess.Popen([BIN, "run", "script.lua", "--max-restarts", "9"], cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if line.startswith("restart 3 of 9 in 4 s"):
                break
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
        self.assertEqual((process.returncode, self.starts()), (130, 3), said)
        self.assertNotIn("restart 4", said)

    def test_by_a_launcher(self):
        """Here one that counts its starts, and itself ends as the run does."""
        launcher = self.folder / "launcher"
        launcher.write_text('#!/bin/sh\necho "$1" >> launched\nshift\n"$@"\n')
        launcher.chmod(0o755)
        code, (run,) = self.restart("e.observe = function(step) if starts() < 2 then kill() end end",
                                    "--launcher", "./launcher 'two words'")
        self.assertEqual((code, run["restarts"]), (0, 1), self.stderr[-2000:])
        self.assertEqual((self.folder / "launched").read_text(), "two words\n" * 2)
        # A launcher is used, too, where nothing is to be started again.
        for file in ("starts", "a.h5", "launched"):
            (self.folder / file).unlink()
        code, lines = self.restart("e.observe = function(step) kill() end", "--launcher", "./launcher 'two words'", restarts=0)
        self.assertEqual((lines, (self.folder / "launched").read_text()), ([], "two words\n"), self.stderr[-2000:])
        self.assertNotEqual(code, 0)
        self.assertNotIn("not started again", self.stderr)

    def test_usage(self):
        self.write(restart_script("dp(2), tp(2)", ""))
        for arguments, environment, why in (
                (["-", "--max-restarts", "1"], {}, "usage.option"),
                (["script.lua", "--restart-with", "steps=3"], {}, "usage.option"),
                (["script.lua", "--max-restarts", "-1"], {}, "usage.option"),
                (["script.lua", "--max-restarts", "1", "--launcher", "mpirun -n 2", "--processes", "2"], {}, "usage.option"),
                (["script.lua", "--max-restarts", "1"], {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
                 "launch.command")):
            with self.subTest(arguments):
                done = self.call("run", *arguments, "--json", stdin="", **environment)
                self.assertEqual((done.returncode, self.lines(done)[0]["code"]), (2, why), done.stderr)
        self.assertEqual(self.starts(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
