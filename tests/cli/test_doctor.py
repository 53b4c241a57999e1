"""What `doctor` finds of this machine, and how the program has threads wait."""
import os
import subprocess
import unittest

import busy
from cases import BIN, ProgramCase


class Doctor(ProgramCase):
    def test_doctor(self):
        done = self.call("doctor", "--json")
        checks = {line["name"]: line["status"] for line in self.lines(done)}
        self.assertEqual(checks["plugins"], "ok")
        self.assertEqual(checks["Lua"], "ok")
        self.assertEqual(done.returncode, 0)

    def checks(self, **environment):
        done = self.call("doctor", "--json", XDG_CACHE_HOME=str(self.folder / "cache"), **environment)
        return {line["name"]: line for line in self.lines(done)}

    def test_it_says_whether_the_machine_is_busy(self):
        self.assertIn("not known", self.checks()["busy"]["found"])
        with busy.Machine(self.folder / "busy", others=1) as root:
            found = self.checks(MESHWRIGHT_SYSTEM_ROOT=root)["busy"]
        self.assertEqual(found["status"], "warning" if len(os.sched_getaffinity(0)) < 10 else "ok")
        self.assertRegex(found["found"], r"other programs have [01]\.\d of \d+ cores? now")
        with busy.Machine(self.folder / "quiet", others=0) as root:
            found = self.checks(MESHWRIGHT_SYSTEM_ROOT=root)["busy"]
        self.assertEqual((found["status"], found["hint"]), ("ok", ""))

    def test_it_says_whether_the_machine_is_calibrated(self):
        found = self.checks()["calibration"]
        self.assertEqual(found["status"], "warning")
        self.assertIn("none", found["found"])
        self.assertIn("meshwright calibrate", found["hint"])
        found = self.checks(MESHWRIGHT_CALIBRATION="nowhere.json")["calibration"]
        self.assertEqual(found["status"], "failed")

    def test_it_says_whether_a_sandbox_can_be_made(self):
        self.needs_namespaces()
        self.assertEqual(self.checks()["sandbox"]["status"], "ok")
        found = self.checks(PATH=str(self.folder))["sandbox"]
        self.assertEqual(found["status"], "warning")
        self.assertIn("bwrap does not start", found["found"])

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
