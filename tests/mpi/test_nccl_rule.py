"""Mixes of the parity tests, whose ranks are shared out to processes of mpirun's and follow NCCL's
rules (support/nccl_rule.h): a communicator is made by all its members together, and messages have
an order and no tags."""
# label: unit
import os
import shutil
import subprocess
import unittest

from cases import ProgramCase, matrix

BUILD = os.environ["MESHWRIGHT_BUILD"]
TEST = os.path.join(BUILD, "bin", "test_parity")

# A part of each kind: schedules, V placements, pairs that share a stage, rings and exchanges.
SOME = "A tied embedding adds*,Every form of sp beside*,A named rule on a borrowed axis*"
ALL = ",".join(f"[#{name}_test]" for name in (
    "pp", "ring", "borrowed", "braids", "coshard", "dp_tp", "fp16", "hooks", "muon", "passes", "precision", "rules",
    "shampoo", "split", "stored", "tp_overlap", "unfused", "zero"))


@unittest.skipIf(shutil.which("mpirun") is None, "MPI is not installed: the plugin was left out")
class NcclRule(ProgramCase):
    def equal_one_rank(self, processes, cases, **environment):
        done = subprocess.run(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(processes), TEST,
             "--filenames-as-tags", cases],
            env={**os.environ, "MESHWRIGHT_TEST_JOINED": "1", "OMP_NUM_THREADS": "1", **environment},
            capture_output=True, text=True, timeout=18000)
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, text[-6000:])
        self.assertEqual(text.count("All tests passed"), processes, text[-3000:])

    def test_some_mixes_over_two_processes(self):
        self.equal_one_rank(2, SOME)

    @matrix
    def test_all_mixes_over_two_processes(self):
        self.equal_one_rank(2, ALL, MESHWRIGHT_MATRIX="1")

    @matrix
    def test_all_mixes_over_three_processes(self):
        self.equal_one_rank(3, ALL, MESHWRIGHT_MATRIX="1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
