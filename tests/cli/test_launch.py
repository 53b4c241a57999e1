"""What commands do where a launcher has started several processes, as its environment says: who
does them, what is
refused, and that the others are silent; and what --processes does with signals. Real processes are
tests/mpi's."""
import json
import os
import signal
import subprocess
import unittest

from cases import BIN, SCRIPT, ProgramCase
from problems import problems


def launched(process, processes=2):
    return {"OMPI_COMM_WORLD_SIZE": str(processes), "OMPI_COMM_WORLD_RANK": str(process)}


class Launch(ProgramCase):
    def setUp(self):
        super().setUp()
        (self.folder / "script.lua").write_text(SCRIPT % ("dp(2)", "e.steps = 1"))

    def refused(self, code, problem, *arguments, **environment):
        """Process 0 says it, others end with the same exit code and say nothing."""
        done = self.call(*arguments, "--json", **{**launched(0), **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(problems(self.lines(done)), [problem])
        other = self.call(*arguments, "--json", **{**launched(1), **environment})
        self.assertEqual((other.returncode, other.stdout, other.stderr), (code, "", ""))

    def test_one_process_does_what_needs_no_others(self):
        first = self.call("plan", "script.lua", **launched(0))
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("dp(2)", first.stdout)
        other = self.call("plan", "script.lua", **launched(1))
        self.assertEqual((other.returncode, other.stdout, other.stderr), (0, "", ""))

    def test_what_starts_processes_itself_is_refused(self):
        self.refused(2, "launch.command", "sweep", "script.lua")
        self.refused(2, "launch.command", "run", "script.lua", "--max-restarts", "2")

    def test_without_a_communicator_nothing_runs(self):
        self.refused(2, "usage.value", "run", "script.lua", "--communicator", "telegraph")
        done = self.call("run", "script.lua", "--communicator", "telegraph", "--json", **launched(0))
        self.assertRegex(self.lines(done)[0]["hint"], r"there are (\w+, )*threads; others by")

    def test_what_the_launcher_goes_with_is_missing(self):
        torchrun = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        if any(one["name"] == "nccl" and one["status"] == "ok" for one in self.lines(self.call("plugins", "list", "--json"))):
            self.skipTest("built for devices")
        done = self.call("run", "script.lua", "--json", **torchrun)
        self.assertEqual((done.returncode, problems(self.lines(done))), (5, ["launch.communicator"]), done.stderr)
        error = self.lines(done)[0]
        self.assertIn('this build has no communicator "nccl": ', error["message"])
        self.assertTrue(error["hint"].startswith("./meshwright build --preset cuda; "), error["hint"])

    def test_a_near_communicator_is_named(self):
        done = self.call("run", "script.lua", "--communicator", "thread", "--json", **launched(0))
        self.assertEqual(problems(self.lines(done)), ["usage.value"])
        self.assertIn('did you mean "threads"?', self.lines(done)[0]["hint"])

    def test_threads_is_each_process_by_itself(self):
        done = self.call("run", "script.lua", "--communicator", "threads", "--json", **launched(0))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.lines(done)[-1]["steps"], 1)

    def test_a_communicator_needs_a_launcher(self):
        error = self.only_refused("telegraph")
        self.assertRegex(error["hint"], r"^there are (\w+, )*threads; others by --plugin-path$")
        self.assertIn('did you mean "threads"?', self.only_refused("treads")["hint"])

    def only_refused(self, name):
        done = self.call("run", "script.lua", "--communicator", name, "--json")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(problems(self.lines(done)), ["usage.value"])
        return self.lines(done)[0]

    def test_another_number_than_the_launcher_started(self):
        self.refused(3, "launch.processes", "run", "script.lua", "--processes", "3")

    def test_bad_options_are_said_once(self):
        self.refused(2, "usage.option", "run", "script.lua", "--stepps", "3")


# In place of mpirun: says that it is there, and starts one copy of the program, or none.
MPIRUN = """\
#!/bin/sh
while [ "$1" != "%s" ]; do shift; done
echo there >&2
%s
"""
ONE_COPY = '"$@" & wait $!'
NONE = "exec sleep 600"
# Waits when its copies are gone, as OpenMPI's does where one did not end well.
WAITS = '"$@" & "$@" & wait; wait; exec sleep 600'


class Signals(ProgramCase):
    """A signal reaches the copies that there are, though others may never come."""

    def start(self, mpirun, more):
        (self.folder / "script.lua").write_text(SCRIPT % ("dp(2)", "e.steps = 1000000 " + more))
        (self.folder / "mpirun").write_text(MPIRUN % (os.path.realpath(BIN), mpirun))
        (self.folder / "mpirun").chmod(0o755)
        (self.folder / "tmp").mkdir(exist_ok=True)
        process = subprocess.Popen([BIN, "run", "script.lua", "--processes", "2", "--json"], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "TMPDIR": str(self.folder / "tmp"), "PATH": f"{self.folder}:{os.environ['PATH']}"})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, process, word):
        for line in process.stderr:
            if word in line:
                return
        self.fail(f"it ended before it said {word!r}")

    def test_before_a_copy_is_there(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(NONE, "")
            self.wait_for(process, "there")
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=300), 130)

    def test_to_one_copy_of_two(self):
        process = self.start(ONE_COPY, "e.observe = function(step) if step == 2 then io.stderr:write('begun\\n') end end")
        self.wait_for(process, "begun")
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=300)
        run = json.loads(stdout.splitlines()[-1])
        self.assertEqual((process.returncode, run["status"]), (130, "interrupted"))
        self.assertIn("SIGTERM", run["reason"])

    def test_a_launcher_that_waits_for_nobody_is_ended(self):
        process = self.start(WAITS, "e.observe = function(step) if step == 2 then io.stderr:write('begun\\n') end end")
        self.wait_for(process, "begun")
        self.wait_for(process, "begun")  # both
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=300), 130)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [])

    def test_none_takes_the_place_of_another(self):
        # Of a step that does not end: the second one ends the copy, so it must have had both.
        process = self.start(ONE_COPY, "e.observe = function(step) io.stderr:write('begun\\n') while true do end end")
        self.wait_for(process, "begun")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=300), 130)


if __name__ == "__main__":
    unittest.main()
