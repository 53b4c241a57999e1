# label: unit
"""How files read: each opens with a sentence on what it is for, comments keep to 100 columns and
name no files that are gone."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

FOLDERS = "app core libs plugins tests bench lua scripts clusters cmake python docs".split()
FILES = "CMakeLists.txt meshwright .ci/run".split()
MARKS = {".cpp": "//", ".h": "//", ".lua": "--", ".py": "#", ".sh": "#", ".cmake": "#"}
WIDEST_COMMENT = 100
# What a language or a tool wants to stand before the opening.
BEFORE = re.compile(r"#!|# label: ")
# Made by the program from declared options, whose texts are as long as they are.
MADE = {"scripts/meshwright.d.lua"}


def sources(root):
    """Each file of ours whose language has comments, and the mark of these."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in [*paths, *(root / name for name in FILES)]:
        ours = path.suffix in MARKS or path.relative_to(root).as_posix() in FILES
        if ours and path.is_file() and path.relative_to(root).as_posix() not in MADE:
            yield path, MARKS.get(path.suffix, "#")


def opening(lines, mark):
    """The comment or docstring that a file begins with, as numbered lines."""
    rest = [(number, line) for number, line in enumerate(lines, 1)]
    while rest and BEFORE.match(rest[0][1]):
        rest = rest[1:]
    found = []
    if rest and rest[0][1].startswith('"""'):
        for number, line in rest:
            found.append((number, line.replace('"""', "")))
            if line.count('"""') == (2 if len(found) == 1 else 1):
                break
        return found
    for number, line in rest:
        if not line.startswith(mark):
            break
        found.append((number, line[len(mark) :]))
    return found


def opening_finding(lines, mark):
    text = " ".join(" ".join(line for _, line in opening(lines, mark)).split())
    if not text:
        return "opens without a comment: one plain sentence says what the file is for"
    sentence = re.split(r"(?<!et al\.)(?<=[.?!])(?= |$)", text)[0]
    if sentence[-1] not in ".?!" or len(sentence.split()) < 4:
        return f'opens with "{sentence[:40]}", which is no sentence'
    if re.match(r"(This|The) (file|header|source|module)\b", sentence):
        return f'opens with "{sentence[:40]}": say what it is for'
    return None


def wide_comments(lines, mark):
    said = {number for number, _ in opening(lines, mark)}
    for number, line in enumerate(lines, 1):
        # An annotation for Lua's language server is one line, however long.
        comment = line.lstrip().startswith(mark) or number in said
        if len(line) > WIDEST_COMMENT and comment and not line.lstrip().startswith("---@"):
            yield number, len(line)


def dangling_comments(lines):
    """Comments that go on from the one above, or begin with what they are of: nobody reads them alone."""
    for number, line in enumerate(lines, 1):
        if re.search(r"(^|\s)// (\.\.\.|Of )", line):
            yield number


def there(root):
    """Each name of a file or folder of ours, with any number of the folders above it."""
    names = set()
    for folder in FOLDERS + ["examples", "kit", "tools"]:
        for path in [root / folder, *(root / folder).rglob("*")]:
            parts = path.relative_to(root).parts
            names.update("/".join(parts[first:]) for first in range(len(parts)))
    return names


def missing_files(lines, known):
    """Files and folders of ours that comments name, and that are not there."""
    folders = "|".join(FOLDERS)
    # A header or source, or a path that begins with a folder of ours; headers in <> are of others.
    named = re.compile(rf"(?<![\w/.<-])((?:[A-Za-z]\w*/)*[a-z]\w*\.(?:h|cpp)|(?:{folders})/[\w./-]*\w)(?![\w*])")
    for number, line in enumerate(lines, 1):
        comment = re.search(r"(?:^|\s)//(.*)", line)
        for name in named.findall(comment[1]) if comment else []:
            if name not in known and not re.search(r"^linux/|^lobject\.h$|NAME", name):
                yield number, name


def findings(root):
    known = there(root)
    for path, mark in sources(root):
        lines = path.read_text().splitlines()
        finding = opening_finding(lines, mark)
        if finding:
            yield f"{path}: {finding}"
        for number, width in wide_comments(lines, mark):
            yield f"{path}:{number}: a comment of {width} columns, more than {WIDEST_COMMENT}"
        if path.suffix in {".cpp", ".h"}:
            for number in dangling_comments(lines):
                yield f"{path}:{number}: a comment is a sentence that needs no line above it"
            for number, name in missing_files(lines, known):
                yield f"{path}:{number}: a comment names {name}, which is not there"


class Words(unittest.TestCase):
    def test_files_say_what_they_are_for(self):
        root = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
        self.assertGreater(len(list(sources(root))), 300, f"found few sources below {root}")
        self.assertEqual(list(findings(root)), [])

    def found(self, path, text):
        """What is found in a folder with one file."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            return "\n".join(findings(pathlib.Path(folder)))

    def test_each_rule_finds_what_breaks_it(self):
        wide = "x " * 60
        cases = [
            ("core/src/mesh/a.cpp", "#include <a>\n", "opens without a comment"),
            ("core/src/mesh/a.h", "#pragma once\n// Late, but a sentence of words.\n", "opens without"),
            ("core/src/mesh/a.cpp", "// Helpers.\n", "no sentence"),
            ("core/src/mesh/a.cpp", "// Counts the ranks of a mesh.\nint x;  // ... of it\n", "needs no line above"),
            ("libs/check/a.h", "// Counts the ranks of a mesh.\n  // Of each rank.\n", "needs no line above"),
            ("libs/check/a.h", "// Counts the ranks of a mesh (mesh/gone.h).\n", ":1: a comment names mesh/gone.h"),
            ("libs/check/a.h", "// Counts ranks as core/src/gone does.\n", ":1: a comment names core/src/gone"),
            ("core/src/mesh/a.cpp", "// what it is for, roughly\nint x;\n", "no sentence"),
            ("core/src/mesh/a.cpp", "// Rajbhandari et al. 2020\n", "no sentence"),
            ("core/src/mesh/a.cpp", "// This file holds the mesh's functions.\n", "say what"),
            ("core/src/mesh/a.cpp", f"// Counts the ranks of a mesh.\n  // {wide}\n", ":2: a comment"),
            ("core/src/mesh/a.cpp", f"// Counts {wide}of a mesh.\n", ":1: a comment of"),
            ("tests/cli/test_a.py", f'# label: unit\n"""Plans\n{wide}."""\n', ":3: a comment of"),
            ("tests/cli/test_a.py", "import os\n", "opens without a comment"),
            ("lua/a.lua", "local x\n", "opens without a comment"),
            ("meshwright", "#!/usr/bin/env bash\nset -e\n", "opens without a comment"),
        ]
        for path, text, expected in cases:
            with self.subTest(path=path, text=text[:40]):
                self.assertIn(expected, self.found(path, text))

    def test_what_is_allowed_is_not_found(self):
        long = "x" * 200
        for path, text in [
            ("core/src/mesh/a.cpp", f"// Counts the ranks of\n// a mesh.\nint {long};\n"),
            ("core/src/mesh/a.cpp", "// Counts the ranks of a mesh (mesh/a.cpp in core/src), by <lua.h>.\n"),
            ("core/src/mesh/a.cpp", "// ZeRO (Rajbhandari et al. 2020) keeps shards. More.\n"),
            ("tests/cli/test_a.py", f'# label: unit\n"""Plans that can\'t be."""\n\nx = "{long}"\n'),
            ("lua/a.lua", f"-- Charts of what a script measured.\n---@param x {long}\n"),
            ("scripts/meshwright.d.lua", f"---@meta meshwright\n--- {long}\n"),
        ]:
            with self.subTest(path=path, text=text[:40]):
                self.assertEqual(self.found(path, text), "")


if __name__ == "__main__":
    sys.exit(unittest.main())
