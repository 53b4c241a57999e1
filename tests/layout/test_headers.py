# label: unit
"""Each header of the SDK compiles alone, as a plugin compiles it, with the flags of one. A header
stands in a file behind such headers only as it includes itself, which changes nothing for it: so
each is alone, in half as many files as there are headers. Where libtorch is read, the normal run
takes the precompiled header along, which hides a standard header that is missing, not one of the
SDK's; and it ends before templates are instantiated, for which the compiler takes most of its time,
as libtorch's wait there too. Both are for the matrix."""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

from cases import ProgramCase, matrix

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
BUILD = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
FOLDERS = ("core/include", "plugins/models/include", "libs/transport/include")
HEADERS = sorted(header for folder in FOLDERS for header in (SOURCE / folder / "meshwright").glob("*.h"))


def included():
    """The SDK's headers that each one includes, itself or by another; and those that read libtorch."""
    texts = {header.name: header.read_text() for header in HEADERS}
    direct = {name: set(re.findall(r'#include "meshwright/(\w+\.h)"', text)) for name, text in texts.items()}

    def all_of(name, found):
        for other in direct[name]:
            if other not in found:
                found.add(other)
                all_of(other, found)
        return found

    closed = {name: all_of(name, set()) for name in texts}
    torch = {name for name, text in texts.items() if re.search(r"#include <(ATen|torch|c10)/", text)}
    return closed, {name for name in texts if torch & ({name} | closed[name])}


def chains(closed):
    """As few lists as can be in which each header includes all before it: pairs of neighbours by bipartite
    matching, as Dilworth has it."""
    before = {}

    def match(name, tried):
        for other in sorted(closed[name] - tried):
            tried.add(other)
            if other not in before or match(before[other], tried):
                before[other] = name
                return True
        return False

    for name in sorted(closed):
        match(name, set())
    after = {later: earlier for earlier, later in before.items()}  # a header: the one before it in its file
    lists = []
    for last in sorted(set(closed) - set(after.values())):
        chain = [last]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        lists.append(chain[::-1])
    return lists


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


# The last line of a file, which stops the compiler: all before it was read, and templates were not
# instantiated.
END = 'static_assert(sizeof(int) == 0, "nothing before this line is wrong");\n'
ENDED = re.compile(r"\S+: error: static assertion failed: nothing before this line is wrong\n")


class Headers(ProgramCase):
    def compiled(self, words, text):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "alone.cpp"
            file.write_text(text)
            done = subprocess.run(
                [*words, "-Werror", "-fsyntax-only", str(file)], capture_output=True, text=True, cwd=BUILD
            )
        return done.returncode, done.stderr[-2000:]

    def read(self, words, text):
        """As `compiled`, up to where templates are instantiated."""
        rc, said = self.compiled([*words, "-Wfatal-errors", "-fdiagnostics-color=never"], text + END)
        self.assertNotEqual(rc, 0)
        return 0 if ENDED.search(said) and said.count("error: ") == 1 else rc, said

    def all_compile(self, of_torch, without):
        """What a header says twice, and what it lacks, shows. `of_torch`: compiles a file that reads libtorch;
        `without`: words for the others."""
        closed, torch = included()
        files = chains(closed)
        self.assertEqual(sorted(name for chain in files for name in chain), sorted(closed))

        def compiled(chain):
            text = "".join(f'#include "meshwright/{name}"\n' * 2 for name in chain)
            return of_torch(text) if torch & set(chain) else self.compiled(without, text)

        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for chain, (rc, said) in zip(files, pool.map(compiled, files), strict=True):
                with self.subTest(" ".join(chain)):
                    self.assertEqual(rc, 0, said)

    def test_each_compiles_alone(self):
        self.assertTrue(HEADERS)
        words = flags()
        self.all_compile(lambda text: self.read(words, text), without_precompiled(words))

    def test_what_does_not_compile_is_found(self):
        wrong = '#include "meshwright/mesh.h"\nmw::Program program;\n'
        for rc, said in (self.compiled(without_precompiled(flags()), wrong), self.read(flags(), wrong)):
            self.assertNotEqual(rc, 0)
            self.assertIn("Program", said)
        self.assertNotEqual(self.read(flags(), "inline int unused(int a) { int b = a; return a; }\n")[0], 0, "a warning")

    def test_a_header_stands_behind_its_own_alone(self):
        closed, _ = included()
        self.assertIn("options.h", closed["strategy.h"])
        for chain in chains(closed):
            for n, name in enumerate(chain):
                self.assertLessEqual(set(chain[:n]), closed[name])

    @matrix
    def test_each_compiles_without_the_precompiled_header(self):
        words = without_precompiled(flags())
        self.all_compile(lambda text: self.compiled(words, text), words)


if __name__ == "__main__":
    unittest.main()
