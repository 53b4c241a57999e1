# label: cli
"""`calibrate` writes a file of this machine, plans are priced by it and say so, another machine's
is not used, and one that is broken off leaves the old file as it was."""
import json
import os
import signal
import subprocess
import unittest

import busy
from cases import BIN, ProgramCase
from problems import problems

PLAN = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
mw.plan {
  model = mw.llama { layers = 2, hidden = 48, heads = 4, ffn = 96, vocab = 64 }, data = mw.synthetic {},
  sequence = 24, plan = { dp(2), tp(2) }, batch = 8, optimizer = mw.adamw { lr = 1e-3 }, steps = 4,
}
"""

OLD = '{\n "schema": "meshwright.calibration/1", "an": "old one"}'


class Calibrate(ProgramCase):
    def plan(self, **environment):
        (self.folder / "plan.lua").write_text(PLAN)
        done = self.call("plan", "plan.lua", "--json", **{"XDG_CACHE_HOME": str(self.folder / "cache"), **environment})
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return done, lines

    def test_a_calibration_from_its_making_to_its_refusal(self):
        before, lines = self.plan()
        self.assertEqual(before.returncode, 0, before.stderr)
        self.assertNotIn("calibrated", lines[-1]["priced_for"])
        self.assertNotIn("step_error", lines[-1])
        self.assertGreater(lines[-1]["cpu_seconds"], 0)

        made = self.call("calibrate", "--quick", "--json", XDG_CACHE_HOME=str(self.folder / "cache"))
        self.assertEqual(made.returncode, 0, made.stderr)
        file = self.folder / "cache/meshwright/calibration.json"
        said, kept = json.loads(made.stdout), json.loads(file.read_text())
        self.assertEqual(said["kind"], "calibration")
        self.assertEqual(said["file"], str(file))
        self.assertEqual({key: said[key] for key in kept}, kept)
        self.assertEqual(kept["schema"], "meshwright.calibration/4")
        self.assertIn("linear wgrad", kept["work"]["4"])
        self.assertEqual(sorted(kept["transfers"]["all-reduce"]), ["2", "4", "8"])
        self.assertTrue(all(mix["predicted_cpu_seconds"] > 0 for mix in kept["mixes"]))

        after, lines = self.plan()
        self.assertEqual(after.returncode, 0, after.stderr)
        plan = lines[-1]
        self.assertIn("measured briefly " + kept["date"][:10], plan["priced_for"])
        self.assertIn(kept["cpu"], plan["priced_for"])
        self.assertEqual(plan["step_error"], kept["step_error"])
        self.assertIn("±", after.stderr)

        # Another machine's: not used where it lies in the cache, an error where it was asked for.
        file.write_text(json.dumps({**kept, "cpu": "Z80"}))
        other, lines = self.plan()
        self.assertEqual(other.returncode, 0)
        self.assertNotIn("calibrated", lines[-1]["priced_for"])
        self.assertEqual(len([line for line in other.stderr.splitlines() if "of Z80" in line]), 1)
        asked, lines = self.plan(MESHWRIGHT_CALIBRATION=str(file))
        self.assertEqual((asked.returncode, problems(lines)), (5, ["calibration.other-machine"]))
        gone, lines = self.plan(MESHWRIGHT_CALIBRATION="nowhere.json")
        self.assertEqual((gone.returncode, problems(lines)), (5, ["calibration.missing"]))
        file.write_text("{}")
        broken, lines = self.plan(MESHWRIGHT_CALIBRATION=str(file))
        self.assertEqual((broken.returncode, problems(lines)), (5, ["calibration.broken"]))

    def test_the_first_use_measures_briefly_and_keeps_it(self):
        with busy.Machine(self.folder / "quiet", 0) as root:
            first, lines = self.plan(MESHWRIGHT_FIRST_USE="on", MESHWRIGHT_SYSTEM_ROOT=root)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("measuring this machine for predictions, once", first.stderr)
        self.assertIn("measured briefly", lines[-1]["priced_for"])
        self.assertGreater(lines[-1]["step_error"], 0)
        kept, = self.folder.glob("cache/meshwright/first-use-*.json")
        self.assertTrue(json.loads(kept.read_text())["quick"])
        again, lines = self.plan(MESHWRIGHT_FIRST_USE="on")
        self.assertNotIn("measuring this machine", again.stderr)
        self.assertIn("measured briefly", lines[-1]["priced_for"])
        # A calibration replaces it.
        full = {**json.loads(kept.read_text()), "quick": False}
        (self.folder / "cache/meshwright/calibration.json").write_text(json.dumps(full))
        self.assertIn("calibrated", self.plan()[1][-1]["priced_for"])

    def test_nobody_knows_how_good_a_first_use_beside_other_programs_is(self):
        with busy.Machine(self.folder / "busy", 2 * len(os.sched_getaffinity(0)), run=True) as root:
            _, lines = self.plan(MESHWRIGHT_FIRST_USE="on", MESHWRIGHT_SYSTEM_ROOT=root)
        self.assertIn("while other programs used", lines[-1]["priced_for"])
        self.assertNotIn("step_error", lines[-1])

    def test_a_cache_that_cannot_be_written_is_said(self):
        done, _ = self.plan(MESHWRIGHT_FIRST_USE="on", XDG_CACHE_HOME="/proc/nowhere")
        self.assertIn("/proc/nowhere/meshwright cannot be written", done.stderr)

    def test_one_that_is_broken_off_leaves_the_old_file(self):
        file = self.folder / "mine.json"
        file.write_text(OLD)
        process = subprocess.Popen([BIN, "calibrate", "-o", file], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertIn("one rank", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["mine.json"])
        self.assertEqual(file.read_text(), OLD)

    def test_a_file_that_cannot_be_written(self):
        done = self.call("calibrate", "--quick", "--json", "-o", "/proc/no/such.json")
        self.assertEqual((done.returncode, problems(map(json.loads, done.stdout.splitlines()))), (5, ["calibration.write"]))


if __name__ == "__main__":
    unittest.main()
