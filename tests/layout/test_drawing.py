# label: unit
"""The drawing in docs/floors.svg is what the includes of core/src are now."""

import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
sys.path.insert(0, str(ROOT / "docs"))
sys.dont_write_bytecode = True
import floors  # noqa: E402


class Drawing(unittest.TestCase):
    def test_it_is_up_to_date(self):
        drawn = (ROOT / "docs/floors.svg").read_text()
        self.assertTrue(drawn == floors.draw(ROOT), "includes have changed: run docs/floors.py")

    def edges(self, files):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder) / "core/src" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return floors.included_folders(pathlib.Path(folder))

    def test_includes_are_found(self):
        edges = self.edges({
            "base/text.cpp": '#include "base/text.h"\n#include <string>\n',
            "mesh/mesh.cpp": '#include "meshwright/mesh.h"\n\n#include "base/text.h"\n',
            "plan/passes/a.cpp": '#include "meshwright/mesh.h"\n#include "meshwright/op.h"\n',
        })
        self.assertEqual(edges, {"base": set(), "mesh": {"base"}, "plan": {"mesh"}})

    def test_what_follows_from_others_is_not_drawn(self):
        edges = {"base": set(), "mesh": {"base"}, "plan": {"base", "mesh"}}
        self.assertEqual(floors.rows_of(edges), [["base"], ["mesh"], ["plan"]])
        pairs = [("mesh", "base", False), ("plan", "mesh", False)]
        self.assertEqual(floors.essential(edges), pairs)

    def test_a_circle_is_shown(self):
        edges = {"base": {"plan"}, "plan": {"base"}, "app": {"plan"}}
        pairs = floors.essential(edges)
        self.assertIn(("base", "plan", True), pairs)
        self.assertIn(("plan", "base", True), pairs)
        self.assertIn(("app", "plan", False), pairs)


if __name__ == "__main__":
    unittest.main()
