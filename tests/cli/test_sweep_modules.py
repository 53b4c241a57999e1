"""Sweeps of scripts that load files of their own: each cell has what it loads, and runs what was
there when the sweep began."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cases import BIN
from test_sweep import SweepCase


class Modules(SweepCase):
    """What a script loads from files of its own."""
    FILES = {"mine/shape.lua": "return { layers = 2 }", "over.lua": "return { seed = { 1, 2 } }",
             "more/rate.lua": "return 1e-2", "extra/width.lua": "return 16"}
    TEXT = """local mw = require "meshwright"
package.path = "extra/?.lua;" .. package.path
local dp = mw.plugins("dp")
local sweep = mw.sweep { name = "s", over = dofile "over.lua", base = { plan = { dp(2) }, data = mw.synthetic {}, sequence = 8,
  batch = 4, steps = 2, optimizer = mw.adamw { lr = assert(loadfile("more/rate.lua"))() },
  model = mw.llama { layers = require("mine.shape").layers, hidden = require "width", heads = 2, ffn = 32, vocab = 32 } } }
sweep:go()
"""

    def put(self):
        for name, text in self.FILES.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        return self.write(self.TEXT)

    def test_a_cells_folder_has_them_and_runs_from_there(self):
        self.put()
        row = self.cells()["seed=1"]
        for name in self.FILES:
            (self.folder / name).unlink()
        folder = self.folder / row["folder"]
        there = subprocess.run([BIN, "sweep", "script.lua", "--json", "--only", "seed=1"], cwd=folder, capture_output=True, text=True)
        self.assertEqual(there.returncode, 0, there.stderr)
        again = json.loads(there.stdout.splitlines()[0])
        self.assertEqual((again["hash"], again["losses"]), (row["hash"], row["losses"]))

    def test_cells_run_what_was_there_when_the_sweep_began(self):
        script = self.put()
        text = self.TEXT.replace("sweep:go()", """if not io.open("changed") then io.open("changed", "w"):close()
  io.open("mine/shape.lua", "w"):write("return { layers = 1 }"):close() end
sweep:go()""")
        script.write_text(text)
        self.assertEqual(self.states(self.cells()), {"seed=1": "done", "seed=2": "done"})

    def test_files_of_one_name_from_elsewhere_are_each_their_own(self):
        elsewhere = pathlib.Path(tempfile.mkdtemp(dir=self.folder.parent))
        self.addCleanup(shutil.rmtree, elsewhere, ignore_errors=True)
        for name, number in (("a", 1), ("b", 16), ("c", 32)):
            (elsewhere / name).mkdir()
            (elsewhere / name / "part.lua").write_text(f"return {number}")
        self.put()
        self.write(self.TEXT.replace('require("mine.shape").layers', f'dofile "{elsewhere}/a/part.lua"')
                   .replace('require "width"', f'dofile "{elsewhere}/b/part.lua"')
                   .replace("ffn = 32", f'ffn = dofile "../{elsewhere.name}/c/part.lua"'))
        rows = self.cells()
        self.assertEqual(self.states(rows), {"seed=1": "done", "seed=2": "done"})
        shutil.rmtree(elsewhere)
        there = subprocess.run([BIN, "sweep", "script.lua", "--json", "--only", "seed=1"], cwd=self.folder / rows["seed=1"]["folder"],
                               capture_output=True, text=True)
        self.assertEqual(there.returncode, 0, there.stdout + there.stderr)
        self.assertEqual(json.loads(there.stdout.splitlines()[0])["losses"], rows["seed=1"]["losses"])

    def test_a_run_folder_has_them_too(self):
        self.put()
        self.write(self.TEXT.split("local sweep")[0] + """mw.train { plan = { dp(2) }, data = mw.synthetic {}, sequence = 8, batch = 4,
          steps = 2, optimizer = mw.adamw { lr = 1e-2 }, log = "run/",
          model = mw.llama { layers = require("mine.shape").layers, hidden = dofile "extra/width.lua", heads = 2, ffn = 32, vocab = 32 } }""")
        self.only("run", "script.lua")
        self.assertEqual((self.folder / "run/mine/shape.lua").read_text(), self.FILES["mine/shape.lua"])
        self.assertTrue((self.folder / "run/extra/width.lua").exists())


if __name__ == "__main__":
    unittest.main()
