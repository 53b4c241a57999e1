"""plugins test mpi: mpirun starts its processes, as the plugin says, and every check passes."""
import json
import shutil
import unittest

from cases import ProgramCase


@unittest.skipIf(shutil.which("mpirun") is None, "MPI is not installed: the plugin was left out")
class PluginsTest(ProgramCase):
    def test_mpi(self):
        done = self.call("plugins", "test", "mpi", "--json")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        checks = {line["check"]: line for line in lines if line["kind"] == "check"}
        self.assertEqual({name: check for name, check in checks.items() if check["status"] != "ok"}, {}, done.stderr[-3000:])
        self.assertEqual(done.returncode, 0)
        self.assertEqual(sum(name.startswith("equals one rank over it") for name in checks), 8)
        for check in ("bytes and memory as predicted, over it", "all processes end well"):
            self.assertIn(check, checks)
        self.assertRegex(checks["a process that is killed is named"]["found"], "[Pp]rocess 1 ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
