# label: unit
"""NVRTC, which needs no GPU, compiles the texts of fused kernels that the tests of models run on
CPUs, and what the plugin cuda has it compile is kept in files."""
import concurrent.futures
import ctypes
import os
import pathlib
import subprocess
import sysconfig
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
FOLDER = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cu13/lib"


def compiled(nvrtc, text, architecture):
    """The error and the log of NVRTC."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    error = nvrtc.nvrtcCompileProgram(program, 2, options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return error, log.value.decode()


@unittest.skipUnless((FOLDER / "libnvrtc.so.13").exists(), "the tests' Python is without NVRTC")
class Nvrtc(unittest.TestCase):
    def run_tests(self, program, tag, **variables):
        done = subprocess.run([BUILD / "bin" / program, tag], capture_output=True, text=True, timeout=600,
                              env={**os.environ, **variables})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_text_compiles(self):
        nvrtc = ctypes.CDLL(str(FOLDER / "libnvrtc.so.13"))
        with tempfile.TemporaryDirectory() as folder:
            self.run_tests("test_model", "[fused]", MESHWRIGHT_FUSED_TEXTS=folder)
            texts = [path.read_bytes() for path in sorted(pathlib.Path(folder).glob("*.cu"))]
        self.assertGreater(len(texts), 100)
        pairs = [(text, architecture) for text in texts for architecture in ("sm_80", "sm_90")]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (text, architecture), said in zip(pairs, pool.map(lambda pair: compiled(nvrtc, *pair), pairs)):
                self.assertEqual(said, (0, ""), f"{architecture}\n{text.decode()}")

    def test_what_it_compiles_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_tests("test_cuda", "[nvrtc]", XDG_CACHE_HOME=folder, LD_LIBRARY_PATH=str(FOLDER))


if __name__ == "__main__":
    unittest.main(verbosity=2)
