"""What carries processes over NCCL compiles and links wherever the CUDA toolkit is, and nothing
else that is built needs libtorch's CUDA side."""
# label: unit

import os
import pathlib
import re
import subprocess
import unittest

BUILD = pathlib.Path(os.environ.get("MESHWRIGHT_BUILD", "build"))


def needed(file):
    said = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said)


class Nccl(unittest.TestCase):
    def test_it_links(self):
        state = (BUILD / "nccl.txt").read_text().strip()
        if state != "check":
            self.skipTest(f"the plugin nccl is left out: {state}")
        done = subprocess.run(["cmake", "--build", BUILD, "--target", "check_nccl"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        module = BUILD / "checked" / "nccl_checked.so"
        self.assertIn("libtorch_cuda.so", needed(module))
        undefined = subprocess.run(["nm", "-D", "-u", "-C", module], capture_output=True, text=True, check=True).stdout
        self.assertIn("c10d::ProcessGroupNCCL", undefined)
        provided = subprocess.run(["nm", "-D", "--defined-only", module], capture_output=True, text=True,
                                  check=True).stdout.split("\n")
        self.assertEqual([line.split()[-1] for line in provided if line], ["meshwright_plugin"])

    def test_nothing_else_needs_cuda(self):
        files = [*BUILD.glob("lib/**/*.so"), *BUILD.glob("bin/meshwright")]
        self.assertGreater(len(files), 5)
        for file in files:
            if file.stem != "nccl":
                self.assertEqual([name for name in needed(file) if "cuda" in name or "nccl" in name], [], file)


if __name__ == "__main__":
    unittest.main(verbosity=2)
