# label: unit
"""The house's rules: who may include whom, and which library lives where."""

import os
import pathlib
import re
import sys
import tempfile
import unittest

FLOORS = "base mesh comm schedule graph program plan run registry".split()

# Headers of the SDK that no floor of the kernel implements, and who does.
OUTSIDE = {
    "block_op builder kernel hf_config ops straight_through": "plugins/models",
    "process_link store_link transport": "libs/transport",
}
NOT_OF_THE_KERNEL = {f"meshwright/{name}.h" for names in OUTSIDE for name in names.split()}

# header pattern -> the parts that may include it; everywhere else it is a finding
HOMES = {
    r"lua(lib|xlib|conf)?\.h(pp)?$|lauxlib\.h$": {"libs/frontend", "libs/luajson", "plugins/models"},
    r"boost/dll/(?!alias)": {"core/registry"},
    r"hdf5(_hl)?\.h$": {"libs/record"},
    r"xxhash\.h$": {"libs/checkpoint", "libs/observers"},
    r"CLI/": {"app"},
    r"histedit\.h$": {"app"},
    r"mpi\.h$": {"plugins/mpi"},
    r"torch/csrc/distributed/": {"core/comm", "libs/transport", "plugins/nccl"},
    r"torch/(torch|all)\.h$": set(),
}
# Files and folders of tests that are no area of their own. They may include what is private to the
# kernel too.
BESIDE_AREAS = {"layout", "main.cpp", "ops.cpp", "support"}
TEXT_FILES = "**/*.cpp **/*.h **/*.lua **/*.py **/*.sh **/*.cmake".split()
FOLDERS = "core libs app plugins tests bench lua scripts clusters cmake python".split()


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if found:
            yield number, found[1] == '"', found[2]


def part_of(path, root):
    """The part of the house that a file belongs to: "core/plan", "libs/predict", "plugins/tp", "app", "tests/plan"."""
    parts = path.relative_to(root).parts
    if parts[0] == "app":
        return "app"
    return f"core/{parts[2]}" if parts[:2] == ("core", "src") else "/".join(parts[:2])


def links(root):
    """What each library may include besides itself and the SDK: what CMake links it with, and what these link."""
    text = (root / "cmake/targets.cmake").read_text() if (root / "cmake/targets.cmake").exists() else ""
    direct = {name: re.findall(r"\w+", link or "") for name, link in
              re.findall(r"(?m)^meshwright_add_library\((\w+)(?: LINK ([\w ]+?))?(?: WITH [^)]*)?\)", text)}

    def all_of(name):
        return {name}.union(*(all_of(other) for other in direct.get(name, ())))

    return {name: all_of(name) for name in direct}


def sources(root, *folders):
    return sorted(path for folder in folders for path in (root / folder).rglob("*") if path.suffix in (".cpp", ".h"))


def home_findings(root):
    """A library that is not ours is included where it belongs."""
    for path in sources(root, "core/src", "libs", "app", "plugins"):
        part = part_of(path, root)
        for line, quoted, name in includes(path):
            for pattern, homes in HOMES.items():
                if not quoted and re.match(pattern, name) and part not in homes:
                    where = " or ".join(sorted(homes)) or "no part"
                    yield f"{path}:{line}: <{name}> belongs to {where}, not to {part}"


def floor_findings(root):
    """core/src: own folder, the SDK, or a lower floor; nothing of libs, plugins or app."""
    for path in sources(root, "core/src"):
        floor = path.relative_to(root / "core/src").parts[0]
        if floor not in FLOORS:
            yield f"{path}: {floor} is no floor of the kernel ({', '.join(FLOORS)})"
            continue
        for line, quoted, name in includes(path):
            first = name.split("/")[0]
            if not quoted or (first == "meshwright" and name not in NOT_OF_THE_KERNEL):
                continue
            if first == "meshwright":
                yield f"{path}:{line}: {floor} includes {name}, which the kernel does not implement"
            elif first not in FLOORS:
                yield f'{path}:{line}: write "floor/x.h" or "meshwright/x.h", not "{name}"'
            elif FLOORS.index(first) > FLOORS.index(floor):
                yield f"{path}:{line}: {floor} includes {name} of a higher floor"


def library_findings(root):
    """libs: own folder, the SDK, and what CMake links; app: these. Neither includes what is private to the kernel."""
    linked = links(root)
    for path in sources(root, "libs", "app"):
        part = part_of(path, root)
        own = part.split("/")[-1]
        if part != "app" and own not in linked:
            yield f"{path}: {part} is no library (meshwright_add_library in cmake/targets.cmake)"
            continue
        may = set(linked) | {"app"} if part == "app" else linked[own]
        for line, quoted, name in includes(path):
            first = name.split("/")[0]
            first = "frontend" if first in {"lua", "script"} else first
            if quoted and first != "meshwright" and first not in may:
                yield f"{path}:{line}: {part} includes {name}, and may include {', '.join(sorted(may))} and the SDK"


def test_findings(root):
    """A test includes what is private to the kernel only if CMake says that it is one of the kernel."""
    cmake = root / "cmake/tests.cmake"
    areas = re.search(r"set\(tests_of_the_kernel ([^)]*)\)", cmake.read_text())[1].split() if cmake.exists() else []
    for path in sources(root, "tests", "bench"):
        part = part_of(path, root).split("/")[-1]
        for line, quoted, name in includes(path):
            if quoted and name.split("/")[0] in FLOORS and part not in BESIDE_AREAS.union(areas) \
                    and not (path.parent / name).exists():
                yield f"{path}:{line}: {name} is private to the kernel, and this is no test of it"


def sdk_findings(root):
    """The SDK includes itself only; a plugin its own folder, the SDK, and libraries that its CMake file links."""
    include = root / "core/include/meshwright"
    for path in sorted(include.rglob("*.h")):
        for line, quoted, name in includes(path):
            if quoted and not name.startswith("meshwright/"):
                yield f'{path}:{line}: an SDK header includes "{name}", which is not in the SDK'
            elif name.startswith("meshwright/engine/") and path.parent.name != "engine":
                yield f"{path}:{line}: a contract for plugins includes {name}, which is for users of the kernel"
    for group in ("plugins", "tests/plugins"):
        for path in sources(root, group):
            home = root / group / (path.relative_to(root / group).parts[0] if group == "plugins" else "")
            linked = home / "plugin.cmake"
            libraries = set(re.findall(r"\bmeshwright_(\w+)", linked.read_text())) if linked.exists() else set()
            for line, quoted, name in includes(path):
                file = (path.parent / name).resolve()
                own = quoted and file.is_file() and file.is_relative_to(home.resolve())
                own = own or name.startswith("../../../plugins/nccl/") and path.parent.name == "sim_nccl"  # it has that plugin's files
                if quoted and not own and not name.startswith("meshwright/") and name.split("/")[0] not in libraries:
                    yield f'{path}:{line}: a plugin includes "{name}", which is not in the SDK'


PLANNERS = r"\b(moves|sparse_moves|after|derive|grant_in_place|note_releases|ring_kinds|for_each_slot)\s*\("


def prove_findings(root):
    """The prover repeats no fault of the planner's: it includes the SDK alone and nothing of plans,
    calls none of the planner's functions, and has a rule for each code. Only proved.h, a check of
    plans by the prover and the lemmas, includes these."""
    prove = root / "libs/prove"
    for path in sorted([*prove.rglob("*.cpp"), *prove.rglob("*.h")]):
        for line, quoted, name in includes(path):
            if quoted and name.split("/")[0] not in {"prove", "meshwright"}:
                yield f"{path}:{line}: prove includes {name}, and may include the SDK alone"
            above = name == "meshwright/engine/plan.h" or path.parent == prove and name.startswith("prove/lemmas/")
            if above and path.stem != "proved":
                yield f"{path}:{line}: {name} stands above the checker, and only proved.h knows it"
        for number, text in enumerate(path.read_text().splitlines(), 1):
            code = text.split("//")[0]
            if found := re.search(PLANNERS, code):
                yield f"{path}:{number}: prove calls {found[1]}, which is the planner's"
            if re.match(r"\s*default:", code):
                yield f"{path}:{number}: a switch of prove has a default: a new code would need no rule"


def fact_findings(root):
    """The kernel, prove and plugins alone know codes of instructions; all others ask for facts (Instruction). What a
    transfer serves is asked of it, not found by the number of its bucket's gather."""
    for path in sources(root, "libs", "app", "plugins"):
        part = part_of(path, root)
        if part == "libs/prove":
            continue
        for number, text in enumerate(path.read_text().splitlines(), 1):
            code = text.split("//")[0]
            if "Code::" in code and not part.startswith("plugins/"):
                yield f"{path}:{number}: names a code: ask for a fact of the instruction (meshwright/instruction.h)"
            of_bucket = r"\bflat\.(reduction|shard_reduction|gather|gather_directions)\b"
            if re.search(rf"\bpending\b.*{of_bucket}|{of_bucket}.*\bpending\b", code):
                yield f"{path}:{number}: finds out what a transfer serves: see Instruction::serves"


# What a text for people has "cuda" in: examples of a device, and a remedy.
CUDA_AS_AN_EXAMPLE = {"core/include/meshwright/platform.h", "libs/frontend/script/experiment_options.cpp", "app/sandboxed.cpp"}


def device_findings(root):
    """Platforms alone know what is special about a kind of devices: all others ask (meshwright/platform.h)."""
    for path in sources(root, "core", "libs", "app"):
        if path.relative_to(root).as_posix() in CUDA_AS_AN_EXAMPLE:
            continue
        for number, text in enumerate(path.read_text().splitlines(), 1):
            if re.search("cuda|nvidia", text, re.I):
                yield f"{path}:{number}: knows a kind of devices: ask its platform (meshwright/platform.h)"


def file_findings(root):
    """Every header guarded."""
    for folder in FOLDERS:
        for pattern in TEXT_FILES:
            for path in sorted((root / folder).glob(pattern)):
                text = path.read_text()
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
        *home_findings(root),
        *floor_findings(root),
        *library_findings(root),
        *test_findings(root),
        *sdk_findings(root),
        *prove_findings(root),
        *fact_findings(root),
        *device_findings(root),
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
            cmake = pathlib.Path(folder) / "cmake/targets.cmake"
            cmake.parent.mkdir(parents=True, exist_ok=True)
            cmake.write_text("meshwright_add_library(common)\nmeshwright_add_library(prove)\n"
                             "meshwright_add_library(predict LINK common WITH x)\n")
            return "\n".join(findings(pathlib.Path(folder)))

    def test_each_rule_finds_what_breaks_it(self):
        cases = [
            ("core/src/mesh/a.cpp", '#include "plan/plan.h"\n', "higher floor"),
            ("core/src/mesh/a.cpp", '#include "a.h"\n', 'write "floor/x.h"'),
            ("core/src/run/a.cpp", '#include "checkpoint/index.h"\n', 'write "floor/x.h"'),
            ("core/src/run/a.cpp", '#include "meshwright/ops.h"\n', "the kernel does not implement"),
            ("core/src/attic/a.cpp", "int x;\n", "no floor of the kernel"),
            ("core/src/run/a.cpp", "#include <lua.h>\n", "belongs to libs/frontend or libs/luajson or plugins/models"),
            ("core/src/run/a.cpp", "#include <hdf5.h>\n", "belongs to libs/record"),
            ("core/src/comm/a.cpp", "#include <torch/torch.h>\n", "belongs to no part"),
            ("libs/predict/a.cpp", '#include "search/search.h"\n', "may include common, predict and the SDK"),
            ("libs/predict/a.cpp", '#include "plan/derive.h"\n', "may include common, predict and the SDK"),
            ("libs/attic/a.cpp", "int x;\n", "is no library"),
            ("app/a.cpp", '#include "run/executor.h"\n', "app includes run/executor.h"),
            ("tests/record/a.cpp", '#include "run/executor.h"\n', "private to the kernel"),
            ("core/include/meshwright/a.h", '#pragma once\n#include "base/x.h"\n', "not in the SDK"),
            ("core/include/meshwright/a.h", '#pragma once\n#include "meshwright/engine/x.h"\n', "users of the kernel"),
            ("core/include/meshwright/a.h", "int x;\n", "#pragma once"),
            ("plugins/tp/a.cpp", '#include "plan/plan.h"\n', "not in the SDK"),
            ("plugins/tp/a.cpp", '#include "../../plugins/tp/../other.h"\n', "not in the SDK"),
            ("libs/prove/a.cpp", '#include "program/ring.h"\n', "the SDK alone"),
            ("libs/prove/a.cpp", '#include "prove/lemmas/lemmas.h"\n', "stands above the checker"),
            ("libs/prove/lemmas/a.cpp", '#include "meshwright/engine/plan.h"\n', "stands above the checker"),
            ("libs/prove/a.cpp", "auto list = moves(from, to, mesh);\n", "the planner's"),
            ("libs/prove/a.cpp", "    default:\n", "has a default"),
            ("libs/predict/a.cpp", "if (i.code == Code::wait) {\n", "names a code"),
            ("plugins/zero/a.cpp", "if (i.pending == bucket.flat.gather) {\n", "what a transfer serves"),
            ("core/src/run/a.cpp", "if (type == at::kCUDA) {\n", "knows a kind of devices"),
            ("libs/launch/a.cpp", 'add("/dev/nvidia0");\n', "knows a kind of devices"),
            ("docs/a.md", "text\n" + ">" * 7 + " other\n", "unfinished merge"),
        ]
        for path, text, expected in cases:
            with self.subTest(path=path, text=text[:40]):
                self.assertIn(expected, self.broken(path, text))

    def test_what_is_allowed_is_not_found(self):
        text = '#include "meshwright/mesh.h"\n#include "base/x.h"\n#include <ATen/ATen.h>\n'
        self.assertEqual(self.broken("core/src/mesh/a.cpp", text), "")
        self.assertEqual(self.broken("libs/predict/a.cpp", '#include "common/x.h"\n'), "")
        self.assertEqual(self.broken("plugins/tp/a.cpp", '#include "meshwright/x.h"\n'), "")


if __name__ == "__main__":
    sys.exit(unittest.main())
