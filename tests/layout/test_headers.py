# label: unit
"""Each header of the SDK compiles alone, as a plugin compiles it: with the flags of one, in a file
of its own. The normal run takes the precompiled header along, which hides a standard header that
is missing, not one of the SDK's; that is for the matrix."""

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

from cases import ProgramCase, matrix

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
HEADERS = sorted((SOURCE / "core/include/meshwright").glob("*.h"))


def flags():
    """Of a plugin that ships; what to compile, and where to, left out."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if "plugin_zero.dir" in entry["command"]:
            words = shlex.split(entry["command"])
            return words[: words.index("-o")]
    raise AssertionError("no plugin_zero in compile_commands.json")


def without_precompiled(words):
    """Less what brings the precompiled header in."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == "-include":
            skip = True
        elif word != "-Winvalid-pch":
            kept.append(word)
    return kept


class Headers(ProgramCase):
    def compiled(self, words, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "alone.cpp"
            file.write_text(text)
            done = subprocess.run(
                [*words, "-Werror", "-fsyntax-only", str(file)], capture_output=True, text=True, cwd=BUILD
            )
        return done.returncode, done.stderr[-2000:]

    def all_compile(self, words):
        # What a header says twice, and what it lacks, shows.
        texts = [f'#include "meshwright/{h.name}"\n#include "meshwright/{h.name}"\n' for h in HEADERS]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for header, (rc, said) in zip(HEADERS, pool.map(lambda text: self.compiled(words, text), texts), strict=True):
                with self.subTest(header.name):
                    self.assertEqual(rc, 0, said)

    def test_each_compiles_alone(self):
        self.assertTrue(HEADERS)
        self.all_compile(flags())

    def test_what_does_not_compile_is_found(self):
        rc, said = self.compiled(flags(), '#include "meshwright/mesh.h"\nmw::Program program;\n')
        self.assertNotEqual(rc, 0)
        self.assertIn("Program", said)

    @matrix
    def test_each_compiles_without_the_precompiled_header(self):
        self.all_compile(without_precompiled(flags()))


if __name__ == "__main__":
    unittest.main()
