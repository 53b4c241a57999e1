"""The archive of a release: all that it needs is in it, and it runs where nothing else is."""
import hashlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

SOURCE, BUILD = (pathlib.Path(os.environ[name]) for name in ("MESHWRIGHT_SOURCE", "MESHWRIGHT_BUILD"))
_specification = importlib.util.spec_from_file_location("release", SOURCE / "cmake/release.py")
own = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(own)


def release(build, out, *more):
    return subprocess.run([sys.executable, SOURCE / "cmake/release.py", build, out, *more], capture_output=True, text=True)


class Release(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out = pathlib.Path(temporary.name) / "out"

    def test_archive_and_quickstart(self):
        done = release(BUILD, self.out, "--level", "1", "--steps", "2")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertIn("done after 2 of 2 steps", done.stdout)
        archive, sum_file = sorted(self.out.iterdir())
        cuda = own.cuda_of(BUILD)
        self.assertRegex(archive.name, r"^meshwright-\d+\.\d+\.\d+-%slinux-\w+\.tar\.gz$" % (f"cuda{cuda}-" if cuda else ""))
        total, name = sum_file.read_text().split()
        self.assertEqual((total, name), (hashlib.sha256(archive.read_bytes()).hexdigest(), archive.name))
        self.assertEqual(sum_file.name, f"{archive.name}.sha256")
        with tarfile.open(archive) as tar:
            names = [entry.name for entry in tar]
            readme = tar.extractfile(f"{archive.name.removesuffix('.tar.gz')}/README.txt").read().decode()
        top = archive.name.removesuffix(".tar.gz")
        self.assertEqual({name.split("/")[0] for name in names}, {top})
        below = {name.removeprefix(f"{top}/") for name in names}
        for wanted in ("bin/meshwright", "lib/libmeshwright.so", "lib/meshwright/plugins/tp.so", "licenses/torch/LICENSE", "licenses/nvidia-cuda-runtime/License.txt",
                       "lib/meshwright/libtorch/torch/lib/libtorch_cpu.so", "lib/meshwright/system/libfmt.so.9",
                       "include/meshwright/plugin.h", "share/meshwright/scripts/quickstart.lua",
                       "share/meshwright/python/meshwright_figures/__main__.py",
                       "share/meshwright/python/meshwright_calibrate/__main__.py"):
            if "libfmt" in wanted:  # its number is the system's
                self.assertTrue(any(re.match(r"lib/meshwright/system/libfmt\.so\.\d+$", name) for name in below))
            else:
                self.assertIn(wanted, below)
        libraries = {name.rpartition("/")[2] for name in below if name.startswith("lib/meshwright/system/")}
        self.assertFalse([name for name in libraries if re.match(r"(ld-linux|lib(c|m|stdc\+\+|gcc_s)\.so)", name)])
        self.assertEqual(bool(cuda), any("libtorch_cuda" in name for name in below))
        self.assertFalse([name for name in below if "test-plugins" in name])
        self.assertGreater(sum(name.startswith("licenses/torch/") for name in below), 20)
        needs = re.search(r"glibc 2\.(\d+) or newer and a libstdc\+\+ with GLIBCXX_3\.4\.(\d+)", readme)
        self.assertTrue(needs, readme)
        if "bookworm" in pathlib.Path("/etc/os-release").read_text():  # docs/commands.md promises Rocky Linux 9
            self.assertLessEqual(int(needs[1]), 34)
            self.assertLessEqual(int(needs[2]), 29)

    def test_a_build_folder_that_is_none(self):
        folder = self.out.parent / "empty"
        folder.mkdir()
        (folder / "CMakeCache.txt").write_text("")
        done = release(folder, self.out)
        self.assertEqual(done.returncode, 5)
        self.assertIn("run ./meshwright build", done.stderr)

    def test_what_names_the_source_folder_is_refused(self):
        stage = self.out / "stage"
        stage.mkdir(parents=True)
        (stage / "page.md").write_text("fine")
        own.check_names(stage, BUILD)
        (stage / "page.md").write_text(f"see {SOURCE}/core")
        with self.assertRaisesRegex(own.Failed, "page.md names"):
            own.check_names(stage, BUILD)
        (stage / "page.md").unlink()
        (stage / "link").symlink_to("/usr/lib/x")
        with self.assertRaisesRegex(own.Failed, "is a link to /usr/lib/x"):
            own.check_names(stage, BUILD)
        (stage / "link").unlink()
        (stage / "module.so").write_bytes((BUILD / "lib/libmeshwright.so").read_bytes())  # says where libtorch is here
        with self.assertRaisesRegex(own.Failed, "module.so"):
            own.check_names(stage, BUILD)


if __name__ == "__main__":
    unittest.main(verbosity=2)
