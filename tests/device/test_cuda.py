# label: unit
"""What the plugin cuda asks NVIDIA's driver itself, by a stand-in of it: the UUID of a GPU,
whatever its number is."""
import os
import pathlib
import subprocess
import tempfile
import unittest

DRIVER = """
int cuDeviceGet(int* device, int number) { *device = 40 + number; return 0; }
int %s(unsigned char* uuid, int device) { for (int i = 0; i < 15; ++i) uuid[i] = 17 * i; uuid[15] = device; return 0; }
"""


class Cuda(unittest.TestCase):
    def asked(self, function):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{folder}/libcuda.so.1"], input=DRIVER % function,
                           text=True, check=True)
            program = pathlib.Path(os.environ["MESHWRIGHT_BUILD"]) / "bin/test_device"
            return subprocess.run([program, "[driver]", "-s"], capture_output=True, text=True, timeout=300,
                                  env={**os.environ, "LD_LIBRARY_PATH": folder})

    def test_a_gpu_is_named_by_its_uuid(self):
        done = self.asked("cuDeviceGetUuid_v2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("GPU-00112233-4455-6677-8899-aabbccddee2a", done.stdout)

    def test_a_driver_that_does_not_say_is_an_error(self):
        done = self.asked("cuDeviceGetUuid_v0")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("NVIDIA's driver does not say which GPU 2 is", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
