"""What commands do where a launcher has started several processes, as its environment says: who
does them, what is
refused, and that the others are silent. Real processes are tests/mpi's."""
import unittest

from cases import SCRIPT, ProgramCase
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
        for process in (0, 1):  # each host has an installation of its own
            done = self.call("run", "script.lua", "--communicator", "telegraph", "--json", **launched(process))
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn("telegraph", done.stderr)

    def test_threads_is_each_process_by_itself(self):
        done = self.call("run", "script.lua", "--communicator", "threads", "--json", **launched(0))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.lines(done)[-1]["steps"], 1)

    def test_a_communicator_needs_a_launcher(self):
        done = self.call("run", "script.lua", "--communicator", "telegraph", "--json")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_another_number_than_the_launcher_started(self):
        self.refused(3, "launch.processes", "run", "script.lua", "--processes", "3")

    def test_bad_options_are_said_once(self):
        self.refused(2, "usage.option", "run", "script.lua", "--stepps", "3")


if __name__ == "__main__":
    unittest.main()
