# label: unit
"""Every floor of core/src links with the floors below it alone: what its objects use is defined
there or in it.

So nobody below declares, calls or throws what stands above, through whatever header; and
predicting needs no runtime: `predict` is below `run`."""

import collections
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from test_floors import FLOORS  # noqa: E402

OURS = re.compile(r"\b(mw::|typeinfo for mw::|vtable for mw::)")


def floor_of(path):
    """The floor of an object, compiled apart (core/src/plan/x.cpp.o) or together (core_src_plan_0.cpp.o)."""
    found = re.search(r"core[/_]src[/_]([a-z]+)", str(path))
    return found[1] if found else None


def symbols(path):
    """What an object defines and what it lacks."""
    listing = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
    defined, lacking = set(), set()
    for line in listing.splitlines():
        kind, name = line[17], line[19:]
        if OURS.search(name):
            (lacking if kind in "Uw" else defined).add(name)
    return defined, lacking


def findings(objects):
    """objects: (floor, defined, lacking)."""
    home = collections.defaultdict(set)
    for floor, defined, _ in objects:
        for name in defined:
            home[name].add(FLOORS.index(floor))
    for floor, _, lacking in objects:
        for name in sorted(lacking):
            if home[name] and min(home[name]) > FLOORS.index(floor):
                yield f"{floor} needs {name}, which {FLOORS[min(home[name])]} defines"


class Links(unittest.TestCase):
    def test_no_floor_needs_a_higher_one(self):
        build = pathlib.Path(os.environ["MESHWRIGHT_BUILD"])
        # Not all that lies there: objects of folders that are no more may be left over.
        made = set(re.findall(r"CMakeFiles/meshwright(?:_core)?\.dir/\S+\.o", (build / "build.ninja").read_text()))
        paths = [build / path for path in sorted(made) if floor_of(path)]
        missing = set(FLOORS) - {floor_of(path) for path in paths}
        self.assertEqual(missing, set(), "floors without objects")
        objects = [(floor_of(path), *symbols(path)) for path in paths]
        self.assertEqual(list(findings(objects)), [])

    def test_a_call_upwards_is_found(self):
        low, high = FLOORS[0], FLOORS[-1]
        objects = [(low, {"mw::a()"}, {"mw::b()"}), (high, {"mw::b()"}, {"mw::a()"})]
        self.assertEqual(list(findings(objects)), [f"{low} needs mw::b(), which {high} defines"])


if __name__ == "__main__":
    sys.exit(unittest.main())
