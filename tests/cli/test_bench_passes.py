"""bench/passes.py: a step starts about as many kernels as code that PyTorch generates, and they
make as many passes over memory."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

SOURCE, BUILD = (pathlib.Path(os.environ[name]) for name in ("MESHWRIGHT_SOURCE", "MESHWRIGHT_BUILD"))


class Passes(unittest.TestCase):
    def test_kernels_and_bytes_beside_compiled_pytorch(self):
        done = subprocess.run([sys.executable, SOURCE / "bench/passes.py", "--program", BUILD / "bin/meshwright", "--json",
                               "--layers", "4", "--hidden", "256", "--heads", "4", "--ffn", "688", "--vocab", "4096",
                               "--sequence", "256"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        rows = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(rows["products"]["kernels"], 3 * (4 * 7 + 1))
        self.assertEqual(rows["products"]["kernels"], rows["products"]["torch_kernels"])
        self.assertEqual(rows["attention"]["kernels"], rows["attention"]["torch_kernels"])
        self.assertLessEqual(rows["all"]["kernels_ratio"], 1.15, rows)
        self.assertLessEqual(rows["all"]["bytes_ratio"], 1.15, rows)
        self.assertEqual(rows["memory-bound"]["kernels"], 88)
        self.assertGreater(rows["memory-bound"]["bytes_ratio"], 0.5)
        self.assertEqual(rows["all"]["kernels"], sum(rows[kind]["kernels"] for kind in rows if kind != "all"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
