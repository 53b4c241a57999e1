# label: unit
"""The files that pages name are there: README.md and docs send no reader astray."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:cpp|h|lua|py|sh|cmake|md|txt|json))`")
LINKED = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# Below which a page names files; of folders that only a run makes there is nothing to check.
ROOTS = ["", "core/src", "core/include", "docs"]
MADE_BY_RUNS = ("runs/", ".deps/", "build/", "mixes/")


def findings(root):
    for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]):
        code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            code ^= line.startswith("```")
            for name in NAMED.findall(line):
                there = any((root / below / name).is_file() for below in ROOTS)
                if not there and not name.startswith(MADE_BY_RUNS):
                    yield f"{page}:{number}: there is no {name}"
            for name in [] if code else LINKED.findall(line):
                if not (page.parent / name).exists():
                    yield f"{page}:{number}: the link {name} leads nowhere"


class Docs(unittest.TestCase):
    def test_named_files_are_there(self):
        self.assertEqual(list(findings(pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]))), [])

    def test_what_is_missing_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("docs", "core/src/plan", "core/include/meshwright"):
                (root / name).mkdir(parents=True)
            (root / "core/src/plan/plan.h").write_text("")
            (root / "core/include/meshwright/op.h").write_text("")
            (root / "docs/a.md").write_text(
                "`plan/plan.h`, `meshwright/op.h`, `docs/a.md`, [a](a.md#top), [x](https://x.y/z)\n"
                "`plan/gone.h` and [gone](gone.svg)\n```cpp\n[](int a)\n```\n"
            )
            found = [finding.split("/docs/")[1] for finding in findings(root)]
            self.assertEqual(found, ["a.md:2: there is no plan/gone.h", "a.md:2: the link gone.svg leads nowhere"])


if __name__ == "__main__":
    sys.exit(unittest.main())
