# label: unit
"""The core names no form of parallelism and no form's axis: forms are plugins like a stranger's,
and find each other by the roles of their axes. String literals and identifiers are read;
comments may take a form as an example."""

import os
import pathlib
import re
import sys
import unittest

# Axes whose names stand in no request as text.
OTHER_AXES = {"zero_parts"}
# Of a source: what is skipped, literals, identifiers. A raw string has no delimiter here.
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|(?P<include>#\s*include[^\n]*)|R"\((?P<raw>.*?)\)"|"(?P<text>(?:\\.|[^"\\\n])*)"'
    r"|'(?:\\.|[^'\\\n])+'|(?P<name>[A-Za-z_]\w*)|\d[\w.']*", re.S)


def forms(root):
    """The names of the strategies that ship, and of the axes that they ask for."""
    names = set(OTHER_AXES)
    for source in sorted(root.glob("plugins/*/*.cpp")):
        text = source.read_text()
        if "mw::Strategy" not in text:
            continue
        names.add(source.parent.name)
        names.update(re.findall(r'\{"(\w+)",[^{}]*?mw::Role::\w+', text))
    return names


def words_of(kind, text):
    """A literal's words; an identifier and, but for "zero", which numbers are too, its parts."""
    if kind == "text":
        return re.findall(r"\w+", re.sub(r"\\[nt]", " ", text))
    return {text, *(part for part in re.split(r"_+", text) if part.lower() != "zero")}


def named(text, names):
    """Each form's name in a source's text, with its line."""
    for token in TOKEN.finditer(text):
        literal = token["raw"] if token["raw"] is not None else token["text"]
        kind = "text" if literal is not None else "name"
        for word in words_of(kind, literal if literal is not None else token["name"] or ""):
            if word.lower() in names:
                yield text.count("\n", 0, token.start()) + 1, word


def findings(root):
    names = forms(root)
    for path in sorted([*root.glob("core/**/*.cpp"), *root.glob("core/**/*.h")]):
        for line, word in named(path.read_text(), names):
            yield f"{path.relative_to(root)}:{line}: {word}"


class Forms(unittest.TestCase):
    maxDiff = None

    def test_the_core_names_no_form(self):
        root = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
        self.assertTrue({"dp", "zero", "tp", "pp", "sp", "ep", "cp", "ulysses"} <= forms(root), forms(root))
        self.assertGreater(len(list(root.glob("core/src/*/*.cpp"))), 60)
        self.assertEqual(list(findings(root)), [])

    def test_conditions_know_the_axes_that_ship(self):
        """sp and coshard are no axes: sp asks for cp and ulysses, coshard for none."""
        root = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
        text = (root / "libs/frontend/script/instruction_filter.cpp").read_text()
        known = re.search(r"axes_that_ship\(\) \{.*?names\{(.*?)\}", text, re.DOTALL)[1]
        self.assertEqual(set(re.findall(r'"(\w+)"', known)), forms(root) - {"sp", "coshard"})

    def test_what_names_one_is_found(self):
        for text in ('auto x = "tp";', 'f("takes dp(2) ranks");', "int dp = 1;", "int with_tp;", 'f("no ZeRO stage");',
                     "const auto zero = f();", 'R"(a\nsp())"', 'x = "cp\\n";', "a /* b */ = ep;", "f('\"', \"dp\");"):
            with self.subTest(text):
                self.assertEqual(len(list(named(text, {"dp", "tp", "sp", "ep", "cp", "zero"}))), 1)

    def test_what_names_none_is_not(self):
        for text in ("// as tp does\n", "/* dp */", '#include "zero/dp.h"', "t.zero_();", "at::zeros(1)", 'f("tps dpx");',
                     "int zero_bubble;", "f('d', '\\'', 1'000, \"p\");", 'f("step");'):
            with self.subTest(text):
                self.assertEqual(list(named(text, {"dp", "tp", "sp", "ep", "cp", "zero"})), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
