"""What `doctor` finds of this machine, and how the program has threads wait."""
import os
import subprocess
import unittest

from cases import BIN, ProgramCase


class Doctor(ProgramCase):
    def test_doctor(self):
        done = self.call("doctor", "--json")
        checks = {line["name"]: line["status"] for line in self.lines(done)}
        self.assertEqual(checks["plugins"], "ok")
        self.assertEqual(checks["Lua"], "ok")
        self.assertEqual(done.returncode, 0)

    def test_threads_wait_passively_unless_told_otherwise(self):
        def said(**environment):
            kept = {name: value for name, value in os.environ.items()
                    if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
            done = subprocess.run([BIN, "doctor", "--json"], env={**kept, **environment}, capture_output=True, text=True)
            return {line["name"]: line["status"] for line in self.lines(done)}["OpenMP waits"]

        self.assertEqual(said(), "ok")
        self.assertEqual(said(OMP_WAIT_POLICY="ACTIVE"), "warning")


if __name__ == "__main__":
    unittest.main(verbosity=2)
