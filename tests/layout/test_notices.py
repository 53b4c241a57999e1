# label: unit
"""CITATION.cff has the version that CMake builds, and NOTICE names each library that what is built
links, with the versions that cmake/deps.txt pins."""

import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
# The start of a shared library's name, and what NOTICE calls it.
NAMES = {"libtorch": "libtorch", "libc10": "libtorch", "libgomp": "libgomp", "libfmt": "fmt", "liblua": "Lua", "libhdf5": "HDF5",
         "libedit": "libedit", "libmpi": "Open MPI", "libstdc++": "libstdc++", "libgcc": "libgcc", "libcu": "nvidia-cuda-runtime",
         "libnccl": "NCCL"}
SYSTEM = ("ld-linux", "libc.", "libm.", "libdl.", "libpthread.", "librt.", "libmeshwright")


def linked():
    """The names of the libraries that the program, its libraries and its plugins need."""
    built = [BUILD / "bin/meshwright", *BUILD.glob("lib/libmeshwright*.so"), *BUILD.glob("lib/meshwright/plugins/*.so")]
    for path in built:
        listing = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True,
                                 env={**os.environ, "LC_ALL": "C"}).stdout
        yield from re.findall(r"\(NEEDED\).*\[(.+)\]", listing)


class Notices(unittest.TestCase):
    def test_each_library_that_is_linked_is_named(self):
        notice, names = (SOURCE / "NOTICE").read_text(), {name for name in linked() if not name.startswith(SYSTEM)}
        self.assertGreater(len(names), 6)
        for name in sorted(names):
            with self.subTest(name):
                said = next((said for start, said in NAMES.items() if name.startswith(start)), None)
                self.assertIsNotNone(said, "a library that NOTICE and this test do not know")
                self.assertIn(said, notice)

    def test_pinned_versions_are_those_of_the_notice(self):
        notice, pins = (SOURCE / "NOTICE").read_text(), (SOURCE / "cmake/deps.txt").read_text()
        torch = re.search(r"(?m)^wheel/\w+ torch (\S+)", pins)[1]
        self.assertIn(f"libtorch from torch {torch}", notice)
        runtime = re.search(r"(?m)^wheel/\w+ nvidia-cuda-runtime (\d+\.\d+)", pins)[1]
        self.assertIn(f"nvidia-cuda-runtime, nvidia-cuda-cupti {runtime} ", notice)
        for package, said in [("nlohmann-json3-dev", "JSON for Modern C++"), ("libcli11-dev", "CLI11"), ("libxxhash-dev", "xxHash"),
                              ("libboost-dev", "Boost"), ("libjs-chart.js", "Chart.js"), ("dict-gcide", "GCIDE"),
                              ("catch2", "Catch2"), ("libedit-dev", "libedit"), ("libopenmpi-dev", "Open MPI")]:
            with self.subTest(package):
                self.assertRegex(pins, rf"(?m)^apt {re.escape(package)}$")
                self.assertIn(said, notice)

    def test_the_citation_has_the_version_that_is_built(self):
        keys = dict(re.findall(r'(?m)^([\w-]+): *"?([^"\n]*)"?$', (SOURCE / "CITATION.cff").read_text()))
        self.assertEqual(keys["cff-version"], "1.2.0")
        self.assertLessEqual({"message", "title", "authors", "abstract", "version", "date-released"}, set(keys))
        version = re.search(r"project\(Meshwright VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(keys["version"], version)
        self.assertRegex(keys["date-released"], r"^\d{4}-\d{2}-\d{2}$")
        self.assertIn(f"({version})", (SOURCE / "CHANGELOG.md").read_text())


if __name__ == "__main__":
    unittest.main()
