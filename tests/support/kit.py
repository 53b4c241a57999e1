"""The kit as someone from outside has it: installed into a folder of its own, and nothing of the
source folder."""
import os
import pathlib
import shutil
import subprocess
import tempfile

import cases

PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(own LANGUAGES CXX)
set(CMAKE_BUILD_TYPE Release)
find_package(Meshwright REQUIRED)
"""


class KitCase(cases.ProgramCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.around = pathlib.Path(temporary.name)
        cls.prefix = cls.around / "prefix"
        done = subprocess.run(["cmake", "--install", os.environ["MESHWRIGHT_BUILD"], "--prefix", cls.prefix],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.environment = dict(os.environ, MESHWRIGHT_PREFIX=str(cls.prefix), CMAKE_BUILD_PARALLEL_LEVEL="1",
                               PATH=f"{cls.prefix}/bin:{os.environ['PATH']}")
        if shutil.which("ccache"):
            cls.environment |= {
                "CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": temporary.name, "CCACHE_NOHASHDIR": "1",
                "CCACHE_PCH_EXTSUM": "1", "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime"}

    @classmethod
    def build_in(cls, source, build):
        """A project of plugins, built by its author."""
        for command in (("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={cls.prefix}"),
                        ("cmake", "--build", build)):
            done = subprocess.run(list(map(str, command)), env=cls.environment, capture_output=True, text=True,
                                  timeout=900)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return build

    def build(self, source):
        return self.build_in(source, self.folder / "build")

    def shell(self, *command, code=0):
        done = subprocess.run(list(map(str, command)), cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=900)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done
