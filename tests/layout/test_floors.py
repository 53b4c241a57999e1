# label: unit
"""The house's rules: who may include whom, which library lives where, how long a file may be."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

FLOORS = ("base mesh comm schedule model optimizer program plan input predict checkpoint run prove check record report "
          "script plugin lua sweep app").split()
MOST_LINES = 600
MADE = "meshwright.d.lua"  # by the program

# SDK header -> the floor that implements what it declares; a lower floor may not include it, and no
# other header of the SDK of a lower floor
HOMES_OF_HEADERS = {
    "base": "dtype error few json json_text options registration",
    "mesh": "mesh placement",
    "comm": "backend carrier communicator ledger reduction_hook store_link transport world",
    "schedule": "replay schedule",
    "model": "autograd_op block_op builder graph hf_config kernel model op ops straight_through",
    "program": "program",
    "optimizer": "optimizer",
    "plan": "microbatch passes recompute strategy",
    "input": "data lr_schedule",
    "record": "run_file",
    "plugin": "cluster plugin",
}
HOME_OF = {f"meshwright/{name}.h": floor for floor, names in HOMES_OF_HEADERS.items() for name in names.split()}

# header pattern -> the floors that may include it; everywhere else it is a finding
HOMES = {
    r"lua(lib|xlib|conf)?\.h(pp)?$|lauxlib\.h$": {"lua"},
    r"boost/dll/(?!alias)": {"plugin"},
    r"hdf5(_hl)?\.h$": {"record"},
    r"xxhash\.h$": {"checkpoint"},
    r"CLI/": {"app"},
    r"histedit\.h$": {"app"},
    r"torch/csrc/distributed/": {"comm"},
    r"torch/(torch|all)\.h$": set(),
}
TEXT_FILES = "**/*.cpp **/*.h **/*.lua **/*.py **/*.sh **/*.cmake".split()
FOLDERS = "core plugins tests bench lua scripts clusters cmake".split()


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if found:
            yield number, found[1] == '"', found[2]


def floor_findings(root):
    """core/src: own folder, the SDK, or a lower floor."""
    src = root / "core/src"
    for path in sorted([*src.rglob("*.cpp"), *src.rglob("*.h")]):
        floor = path.relative_to(src).parts[0]
        if floor not in FLOORS:
            yield f"{path}: {floor} is no floor of the house ({', '.join(FLOORS)})"
            continue
        for line, quoted, name in includes(path):
            first = name.split("/")[0]
            if quoted and first == "meshwright":
                home = HOME_OF.get(name, "base")
                if FLOORS.index(home) > FLOORS.index(floor):
                    yield f"{path}:{line}: {floor} includes {name}, which {home} implements"
                continue
            if quoted and first not in FLOORS:
                yield f'{path}:{line}: write "floor/x.h" or "meshwright/x.h", not "{name}"'
            elif quoted and FLOORS.index(first) > FLOORS.index(floor):
                yield f"{path}:{line}: {floor} includes {name} of a higher floor"
            for pattern, homes in HOMES.items():
                if not quoted and re.match(pattern, name) and floor not in homes:
                    where = " or ".join(sorted(homes)) or "no floor"
                    yield f"{path}:{line}: <{name}> belongs to {where}, not to {floor}"


def sdk_findings(root):
    """The SDK includes itself only; a plugin its own folder and the SDK."""
    include = root / "core/include/meshwright"
    for path in sorted(include.rglob("*.h")):
        if f"meshwright/{path.name}" not in HOME_OF:
            yield f"{path}: say which floor implements it (HOMES_OF_HEADERS in tests/layout/test_floors.py)"
        for line, quoted, name in includes(path):
            if quoted and not name.startswith("meshwright/"):
                yield f'{path}:{line}: an SDK header includes "{name}", which is not in the SDK'
            own, other = HOME_OF.get(f"meshwright/{path.name}"), HOME_OF.get(name)
            if own and other and FLOORS.index(other) > FLOORS.index(own):
                yield f"{path}:{line}: {path.name} of {own} includes {name}, which {other} implements"
    for group in ("plugins", "tests/plugins"):
        for path in sorted([*root.glob(f"{group}/**/*.cpp"), *root.glob(f"{group}/**/*.h")]):
            home = root / group / (path.relative_to(root / group).parts[0] if group == "plugins" else "")
            for line, quoted, name in includes(path):
                file = (path.parent / name).resolve()
                own = quoted and file.is_file() and file.is_relative_to(home.resolve())
                if quoted and not own and not name.startswith("meshwright/"):
                    yield f'{path}:{line}: a plugin includes "{name}", which is not in the SDK'


PLANNERS = r"\b(moves|sparse_moves|after|derive|grant_in_place|note_releases|ring_kinds|for_each_slot)\s*\("


def prove_findings(root):
    """The prover repeats no fault of the planner's: it includes the contracts and base alone, calls none of the
    planner's functions, and has a rule for each code."""
    prove = root / "core/src/prove"
    for path in sorted([*prove.rglob("*.cpp"), *prove.rglob("*.h")]):
        for line, quoted, name in includes(path):
            if quoted and name.split("/")[0] not in {"prove", "base", "meshwright"}:
                yield f"{path}:{line}: prove includes {name}, and may include contracts and base alone"
        for number, text in enumerate(path.read_text().splitlines(), 1):
            code = text.split("//")[0]
            if found := re.search(PLANNERS, code):
                yield f"{path}:{number}: prove calls {found[1]}, which is the planner's"
            if re.match(r"\s*default:", code):
                yield f"{path}:{number}: a switch of prove has a default: a new code would need no rule"


def file_findings(root):
    """No file longer than MOST_LINES; every header guarded."""
    for folder in FOLDERS:
        for pattern in TEXT_FILES:
            for path in sorted((root / folder).glob(pattern)):
                text = path.read_text()
                lines = text.count("\n")
                if lines > MOST_LINES and path.name != MADE:
                    yield f"{path}: {lines} lines, more than {MOST_LINES}: give its parts rooms"
                if path.suffix == ".h" and "#pragma once" not in text:
                    yield f"{path}: a header without #pragma once"


def merge_findings(root):
    """No text in which a merge was left unfinished."""
    files = [path for folder in [*FOLDERS, "docs"] for path in (root / folder).glob("**/*") if path.is_file()]
    for path in sorted([*files, *root.glob("*.md")]):
        if path.suffix not in {".md", *(pattern[4:] for pattern in TEXT_FILES)}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"(<{7}|>{7}) ", line):
                yield f"{path}:{number}: an unfinished merge"


def findings(root):
    return [
        *floor_findings(root),
        *sdk_findings(root),
        *prove_findings(root),
        *file_findings(root),
        *merge_findings(root),
    ]


class House(unittest.TestCase):
    def test_the_house_is_in_order(self):
        root = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
        self.assertTrue(list(root.glob("core/src/*/*.cpp")), f"no sources below {root}")
        self.assertEqual(findings(root), [])

    def broken(self, path, text):
        """What is found in a house with one file."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return "\n".join(findings(pathlib.Path(folder)))

    def test_each_rule_finds_what_breaks_it(self):
        cases = [
            ("core/src/mesh/a.cpp", '#include "plan/plan.h"\n', "higher floor"),
            ("core/src/mesh/a.cpp", '#include "a.h"\n', 'write "floor/x.h"'),
            ("core/src/attic/a.cpp", "int x;\n", "no floor of the house"),
            ("core/src/run/a.cpp", "#include <lua.h>\n", "belongs to lua"),
            ("core/src/mesh/a.cpp", '#include "meshwright/program.h"\n', "which program implements"),
            ("core/include/meshwright/mesh.h", '#pragma once\n#include "meshwright/op.h"\n', "which model implements"),
            ("core/include/meshwright/other.h", "#pragma once\n", "say which floor"),
            ("core/src/lua/a.cpp", "#include <hdf5.h>\n", "belongs to record"),
            ("core/src/comm/a.cpp", "#include <torch/torch.h>\n", "belongs to no floor"),
            ("core/include/meshwright/a.h", '#pragma once\n#include "base/x.h"\n', "not in the SDK"),
            ("core/include/meshwright/a.h", "int x;\n", "#pragma once"),
            ("plugins/tp/a.cpp", '#include "plan/plan.h"\n', "not in the SDK"),
            ("plugins/tp/a.cpp", '#include "../../plugins/tp/../other.h"\n', "not in the SDK"),
            ("tests/unit/a.cpp", "\n" * (MOST_LINES + 1), "more than 600"),
            ("core/src/prove/a.cpp", '#include "program/ring.h"\n', "contracts and base alone"),
            ("core/src/prove/a.cpp", "auto list = moves(from, to, mesh);\n", "the planner's"),
            ("core/src/prove/a.cpp", "    default:\n", "has a default"),
            ("docs/a.md", "text\n" + ">" * 7 + " other\n", "unfinished merge"),
        ]
        for path, text, expected in cases:
            with self.subTest(path=path, text=text[:40]):
                self.assertIn(expected, self.broken(path, text))

    def test_what_is_allowed_is_not_found(self):
        text = '#include "meshwright/mesh.h"\n#include "base/x.h"\n#include <ATen/ATen.h>\n'
        self.assertEqual(self.broken("core/src/mesh/a.cpp", text), "")
        self.assertEqual(self.broken("core/src/lua/a.cpp", "#include <lua.h>\n"), "")
        self.assertEqual(self.broken("plugins/tp/a.cpp", '#include "meshwright/x.h"\n'), "")


if __name__ == "__main__":
    sys.exit(unittest.main())
