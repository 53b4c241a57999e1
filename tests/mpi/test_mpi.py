"""Processes that mpirun starts: every collective against one thread's results, errors that name
their cause, and ends without a hang, whoever fails or is killed."""
# label: unit
import os
import re
import shutil
import subprocess
import unittest

import mpi_folder

BUILD = os.environ["MESHWRIGHT_BUILD"]
TEST = os.path.join(BUILD, "bin", "test_mpi")
TEST = TEST if os.path.exists(TEST) else os.path.join(BUILD, "test_mpi")


def mpirun(processes, *command, **environment):
    """Ends by itself: a hang is a failure of the test, not of ctest's patience."""
    start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(processes), *command]
    # Of what components of OpenMPI leave, unloaded by then, no suppression can name the module.
    sanitizer = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))
    return subprocess.run(start, env={**os.environ, "ASAN_OPTIONS": sanitizer, **environment}, capture_output=True, text=True, timeout=300)


@unittest.skipIf(shutil.which("mpirun") is None or not os.path.exists(TEST),
                 "MPI is not installed: the plugin was left out")
class Mpi(unittest.TestCase):
    def passes(self, processes, tags, **environment):
        done = mpirun(processes, TEST, tags, **environment)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, text[-6000:])
        # Every process ran them, and none ran nothing.
        self.assertEqual(len(re.findall(r"All tests passed", text)), processes, text[-3000:])

    def test_collectives_of_four_processes(self):
        self.passes(4, "[collectives]")

    def test_collectives_of_two_processes_of_four_ranks(self):
        self.passes(2, "[collectives]", MESHWRIGHT_TEST_RANKS="4")

    def test_collectives_of_groups_that_cross_processes(self):
        self.passes(3, "[collectives]", MESHWRIGHT_TEST_RANKS="2", MESHWRIGHT_TEST_MIXED="1")

    def test_collectives_by_mpi_alone(self):
        """No shared memory, as between machines."""
        self.passes(3, "[collectives]", MESHWRIGHT_TEST_RANKS="2", MESHWRIGHT_MPI_SHARED="0")

    def test_failures(self):
        self.passes(3, "[failures]", MESHWRIGHT_TEST_RANKS="2")

    def test_failures_by_mpi_alone(self):
        self.passes(2, "[failures]", MESHWRIGHT_MPI_SHARED="0")

    def test_a_killed_process_is_named(self):
        done = mpirun(3, TEST, "[killed]")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"TOLD Stopped because rank 2 failed: process 2 \(pid \d+ on .*\) died")

    def test_the_first_process_hears_the_last_word_of_one_that_fails(self):
        done = mpirun(3, TEST, "[left]")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("TOLD no such file", done.stdout)
        self.assertIn("THEN process.lost", done.stdout)


if __name__ == "__main__":
    unittest.main()
