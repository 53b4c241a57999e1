"""The program for ARM64, built by a cross compiler with the pinned wheels of ARM64 and run by an
emulator: a mix equals one rank in float64. It needs root, a mirror of Debian, and the packages
mmdebstrap, g++-aarch64-linux-gnu and qemu-user-static, and takes ten minutes."""
# label: machines

import hashlib
import os
import pathlib
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshwright"
PROGRAMS = ("mmdebstrap", "aarch64-linux-gnu-g++", "qemu-aarch64-static")
PINS = [line.split() for line in (SOURCE / "cmake/deps.txt").read_text().splitlines()]
LIBRARIES = [pin[1] for pin in PINS if pin[:1] == ["apt"] and (pin[1].startswith("lib") or "json" in pin[1])]
# libtorch reads which CPU there is; the emulator shows the machine's own.
CPU = "".join(f"""\
processor\t: {number}
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

""" for number in range(2))
SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
mw.train { model = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 176, vocab = 256 }, data = mw.synthetic {}, sequence = 32,
           plan = { dp(2), tp(2) }, batch = 4, optimizer = mw.adamw { lr = 3e-3 }, steps = 4, threads = 1 }
"""


def setUpModule():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        raise unittest.SkipTest(f"it needs root and {', '.join(missing or PROGRAMS)}")


class Arm64(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def good(self, *command, **options):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def wheels(self):
        """The folder of the wheels of ARM64, which pip downloads where they are not there yet."""
        folder = CACHE / "wheels"
        for name, version, total, file in [pin[1:5] for pin in PINS if pin[:1] == ["wheel/aarch64"]]:
            if not (folder / file).exists():
                tags = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", *(f"_2_{n}" for n in range(5, 40)))]
                self.good("/usr/bin/python3", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--python-version=3.11",
                          "--implementation=cp", *tags, "--dest", folder, f"{name}=={version}")
            self.assertEqual(hashlib.sha256((folder / file).read_bytes()).hexdigest(), total, file)
        return folder

    def test_a_mix_equals_one_rank(self):
        root, deps, build = (self.folder / name for name in ("root", "deps", "build"))
        self.good("mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--architectures=arm64",
                  f"--include={','.join([*LIBRARIES, 'libc6-dev', 'libstdc++-12-dev'])}", "bookworm", root)
        with mock.patch.object(platform, "machine", lambda: "aarch64"), \
             mock.patch.object(sys, "argv", ["", str(SOURCE / "cmake/deps.txt"), str(self.wheels()), str(deps / "libtorch"), "wheel", "keep"]):
            runpy.run_path(str(SOURCE / "cmake/unpack_wheels.py"))
        self.good("cmake", "-S", SOURCE, "-B", build, "-G", "Ninja", f"-DCMAKE_TOOLCHAIN_FILE={SOURCE}/cmake/arm64.cmake",
                  f"-DMESHWRIGHT_SYSROOT={root}", f"-DMESHWRIGHT_DEPS_DIR={deps}", "-DCMAKE_BUILD_TYPE=Release",
                  "-DMESHWRIGHT_TESTS=OFF")
        self.good("ninja", "-C", build, "programs")
        (self.folder / "cpuinfo").write_text(CPU)
        (self.folder / "script.lua").write_text(SCRIPT)
        libraries = ":".join(map(str, [deps / "libtorch/torch/lib", *deps.glob("libtorch/nvidia/*/lib")]))
        said = self.good("unshare", "--mount", "sh", "-ec", 'mount --bind "$1" /proc/cpuinfo; shift; exec "$@"', "sh",
                         self.folder / "cpuinfo", "qemu-aarch64-static", "-cpu", "neoverse-n1", "-L", root, "-E",
                         f"LD_LIBRARY_PATH={libraries}", build / "bin/meshwright", "verify", self.folder / "script.lua")
        self.assertIn("equals one rank in float64", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
