"""Processes that meet at a store on this machine, in the environments of torchrun, srun and
mpirun: every
message arrives, and one that is killed is missed by the others within seconds."""
# label: unit

import os
import pathlib
import shutil
import subprocess
import unittest

from ports import free_ports

PROGRAM = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build")) / "bin" / "test_comm"
LAUNCHERS = ("OMPI_", "PMIX", "PMI_", "MV2_", "SLURM_", "MASTER_", "TORCHELASTIC", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def clean(**more):
    return {**{k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}, **more}


class Processes(unittest.TestCase):
    def run_all(self, count, of, killed=None):
        """Each process' exit code; `of(process)` is the launcher's part of its environment."""
        more = {} if killed is None else {"MESHWRIGHT_TEST_KILLED": str(killed)}
        processes = [subprocess.Popen([PROGRAM, "[.store-process]"], env=clean(**of(p), **more), text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for p in range(count)]
        try:
            said = [p.communicate(timeout=300)[0] for p in processes]
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
        for number, process in enumerate(processes):
            if number == killed:
                self.assertEqual(process.returncode, -9)
            else:
                self.assertEqual(process.returncode, 0, said[number])
                self.assertIn("All tests passed", said[number])

    def torchrun(self, count):
        port = str(*free_ports(1))
        return lambda p: {"RANK": str(p), "WORLD_SIZE": str(count), "LOCAL_RANK": str(p), "MASTER_ADDR": "127.0.0.1",
                          "MASTER_PORT": port}

    def test_torchrun(self):
        self.run_all(4, self.torchrun(4))

    def test_srun(self):
        port = str(*free_ports(1))
        self.run_all(3, lambda p: {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": str(p), "SLURM_LOCALID": str(p),
                                   "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost",
                                   "MASTER_PORT": port})

    def test_one_is_killed(self):
        self.run_all(3, self.torchrun(3), killed=2)

    def test_the_one_with_the_store_is_killed(self):
        self.run_all(3, self.torchrun(3), killed=0)

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun")
    def test_mpirun(self):
        done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", PROGRAM,
                               "[.store-process]"], env=clean(), text=True, capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("All tests passed"), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
