"""scripts/gpu_session.sh: the steps that need no GPU, on this machine's CPUs."""
import os
import subprocess
import unittest

from cases import BIN, SOURCE, ProgramCase


class GpuSession(ProgramCase):
    def session(self, pattern, program=BIN):
        done = subprocess.run([SOURCE / "scripts/gpu_session.sh", self.folder / "results", pattern], capture_output=True, text=True,
                              env={**os.environ, "MESHWRIGHT": program, "MESHWRIGHT_DEVICE": "cpu"}, timeout=600)
        logs = "".join(f"{log.name}: {log.read_text()[-600:]}" for log in (self.folder / "results").glob("*.log"))
        return done.returncode, dict(line.split(None, 1) for line in done.stdout.splitlines()), logs

    def test_its_mixes(self):
        for pattern, steps in (("train-*", 6), ("verify-*", 4), ("repeats", 1)):
            code, said, logs = self.session(pattern)
            self.assertEqual((code, len(said), set(said.values())), (0, steps, {"ok"}), logs)

    def test_a_step_that_fails_is_named(self):
        code, said, _ = self.session("doctor", "/bin/false")
        self.assertEqual(code, 1)
        self.assertRegex(said["doctor"], r"exit code 1, see .*doctor\.log")
        self.assertEqual(self.session("docter")[0], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
