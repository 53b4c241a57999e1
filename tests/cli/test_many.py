"""Many of a thing: entries of a plan, tensors of a safetensors file, metrics of a step. What cannot
be is refused at once; what can takes a time that grows with the number."""
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import h5py
import numpy as np

from cases import BIN, ProgramCase

METRICS = 4500


def safetensors(path, count):
    head = json.dumps({f"t{j}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * j, 4 * j + 4]}
                       for j in range(count)})
    path.write_bytes(struct.pack("<Q", len(head)) + head.encode() + bytes(4 * count))


class Many(ProgramCase):
    def test_entries_of_a_plan(self):
        self.script("dp(2)", "e.plan = {} for i = 1, 4000 do e.plan[i] = dp(1) end")
        done = self.call("run", "script.lua", "--json")
        self.assertEqual(done.returncode, 3, done.stderr[-2000:])
        (error,) = self.lines(done)
        self.assertEqual((error["code"], error["key"]), ("plan.entries", "plan"))
        self.assertIn("4000 entries", error["message"])
        self.assertLess(len(done.stderr), 2000)

    def test_tensors_of_a_file(self):
        """By the square of their number so many would take longer than a call may."""
        safetensors(self.folder / "many.safetensors", 400_000)
        self.script("dp(2)", 'e.weights = "many.safetensors"')
        done = self.call("plan", "script.lua", "--json")
        self.assertIn("are missing in", done.stdout)

    def test_metrics_of_a_step(self):
        self.script("dp(2)", f"""
e.steps, e.log = 3, "many.h5"
e.observe = function(step)
  local all = {{}}
  for i = 1, {METRICS} do all[("metric %04d"):format(i)] = step + i end
  return all
end""")
        done = self.call("run", "script.lua", "--json")
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        with h5py.File(self.folder / "many.h5") as f:
            self.assertEqual(f.attrs["status"].decode(), "done")
            self.assertEqual(len(f["series"]), METRICS + 1)
            for i in (1, 1999, 2000, 2001, METRICS):
                one = f[f"series/metric {i:04}"]
                np.testing.assert_array_equal(one[:], [i, i + 1, i + 2])
                # Each says which steps it lies along, as xarray asks it.
                self.assertEqual(f[one.attrs["DIMENSION_LIST"][0][0]].name, "/series/step")
        (self.folder / "load.lua").write_text('local run = require("meshwright").load("many.h5")\n'
                                              f'print(run.series["metric {METRICS:04}"][3])\n')
        self.assertEqual(self.call("run", "load.lua").stdout.strip(), f"{METRICS + 2}.0")


class Room(ProgramCase):
    """A disk with no room for all of a run file."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("mounts a small file system")
        if shutil.which("mount") is None or shutil.which("umount") is None:
            self.skipTest("there is no mount or no umount here")
        self.disk = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, self.disk)

    def test_no_run_is_left_running(self):
        """Whatever there is no room for, the run file itself, its hidden copy or its rows."""
        for kilobytes in (64, 160, 200, 240, 280, 320, 400, 600):
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", self.disk],
                                     capture_output=True, text=True)
            if mounted.returncode != 0:
                self.skipTest(f"mounting is not allowed here: {mounted.stderr}")
            try:
                self.script("dp(2)", f'e.steps, e.log = 4000, "{self.disk}/x.h5"')
                done = self.call("run", "script.lua", "--json", "--set", "batch=4", "--set", "microbatch=nil")
                left = os.path.exists(f"{self.disk}/x.h5")
                listed = self.call("runs", "list", self.disk, "--json") if left else None
            finally:
                subprocess.run(["umount", "-l", self.disk], check=True)
            with self.subTest(kilobytes=kilobytes):
                self.assertIn(done.returncode, (0, 1), done.stderr[-2000:])
                if done.returncode == 0:
                    break
                self.assertIn("No space left on device", done.stdout)
                if listed is not None:
                    (run,) = self.lines(listed)
                    self.assertEqual(run["status"], "failed", run)


if __name__ == "__main__":
    unittest.main()
