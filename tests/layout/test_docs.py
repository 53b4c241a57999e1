# label: unit
"""The files that pages name are there, and links and anchors lead somewhere: no page sends a reader
astray."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.(?:cpp|h|lua|py|sh|cmake|md|txt|json))`")
LINKED = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
# Below which a page names files; of folders that only a run makes there is nothing to check.
ROOTS = ["", "core/src", "core/include", "libs", "libs/frontend", "libs/transport/include", "plugins/models/include", "docs"]
MADE_BY_RUNS = ("runs/", ".deps/", "build/", "mixes/", "./")  # ./test.sh: of a folder that plugins new made
FOLDERS = "docs bench examples kit libs plugins python scripts tests core".split()


def anchors(page):
    """The names by which a page's headings are linked to, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    names = []
    for heading in re.findall(r"(?m)^#+ +(.+?) *$", text):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        names.append(f"{name}-{names.count(name)}" if name in names else name)
    return names


def findings(root):
    pages = [*root.glob("*.md"), *(page for folder in FOLDERS for page in (root / folder).rglob("*.md"))]
    for page in sorted(pages):
        code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            code ^= line.startswith("```")
            for name in NAMED.findall(line):
                there = any((root / below / name).is_file() for below in ROOTS)
                if not there and not name.startswith(MADE_BY_RUNS):
                    yield f"{page}:{number}: there is no {name}"
            # What stands in a code span is no link.
            for name, anchor in [] if code else LINKED.findall(re.sub(r"`[^`]*`(?!\])", "", line)):
                target = page.parent / name if name else page
                if not target.exists():
                    yield f"{page}:{number}: the link {name} leads nowhere"
                elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
                    yield f"{page}:{number}: {name or 'the page'} has no heading #{anchor}"


class Docs(unittest.TestCase):
    def test_named_files_are_there(self):
        self.assertEqual(list(findings(pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]))), [])

    def test_every_page_is_in_the_index(self):
        docs = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"]) / "docs"
        linked = {name for name, _ in LINKED.findall((docs / "README.md").read_text())}
        self.assertEqual({page.name for page in docs.glob("*.md")} - linked, {"README.md"})

    def test_what_is_missing_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("docs", "core/src/plan", "core/include/meshwright"):
                (root / name).mkdir(parents=True)
            (root / "core/src/plan/plan.h").write_text("")
            (root / "core/include/meshwright/op.h").write_text("")
            (root / "docs/a.md").write_text(
                "`plan/plan.h`, `meshwright/op.h`, `docs/a.md`, [a](a.md#twice), [x](https://x.y/z)\n"
                "`plan/gone.h` and [gone](gone.svg)\n```cpp\n[](int a)\n```\n"
                "## `dp`'s Hooks: a, b\n[a](#dps-hooks-a-b) [b](a.md#dps-hooks-a-b) [c](#dps) [d](./a.md#x)\n"
                "## Twice\n## Twice\n[a](#twice) [b](#twice-1) [c](#twice-2)\n"
            )
            found = [finding.split("/docs/")[1] for finding in findings(root)]
            self.assertEqual(found, [
                "a.md:2: there is no plan/gone.h", "a.md:2: the link gone.svg leads nowhere",
                "a.md:7: the page has no heading #dps", "a.md:7: ./a.md has no heading #x",
                "a.md:10: the page has no heading #twice-2",
            ])


if __name__ == "__main__":
    sys.exit(unittest.main())
