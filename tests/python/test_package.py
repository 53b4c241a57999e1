"""The Python package (python/): installed as a user does, it reads runs and sweeps, and calls the
program."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import h5py
import pandas as pd

import made_runs
import pages
from cases import BIN, SOURCE, ProgramCase

PACKAGE = SOURCE / "python"
INSTALLED = tempfile.TemporaryDirectory()


def install(folder):
    """Installs a copy of the package, as building leaves files behind, without a network."""
    copy = pathlib.Path(folder) / "copy"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    target = pathlib.Path(folder) / "target"
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation",
                           "--quiet", "--target", target, copy], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


sys.path.insert(0, str(install(INSTALLED.name)))
import meshwright as mw  # noqa: E402


def tearDownModule():
    INSTALLED.cleanup()


TWO_RUNS = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
for _, plan in ipairs { { dp(2) }, { tp(2) } } do
  mw.train {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {},
    sequence = 8, plan = plan, batch = 4, optimizer = mw.adamw { lr = 1e-3 }, steps = 3, timeout = 300,
  }
end
"""


class Package(unittest.TestCase):
    def test_what_is_installed(self):
        self.assertTrue(pathlib.Path(mw.__file__).is_relative_to(INSTALLED.name))
        self.assertTrue((pathlib.Path(mw.__file__).parent / "py.typed").exists())
        for name in mw.__all__:
            self.assertTrue(getattr(mw, name).__doc__, name)
        version = re.search(r'(?m)^version = "(.*)"', (PACKAGE / "pyproject.toml").read_text())[1]
        said = subprocess.run([BIN, "version"], capture_output=True, text=True).stdout
        self.assertIn(f"meshwright {version}", said)

    def test_values_as_lua_reads_them(self):
        for value, text in ((True, "true"), (None, "nil"), (3, "3"), (1e-3, "0.001"), (float("inf"), "math.huge"),
                            ("full", "full"), ("{tp(2), dp(2)}", "{tp(2), dp(2)}"), ([1, "a"], '{1, "a"}'),
                            ({"lr": 1e-3, "end": True, "a b": [2]}, '{lr = 0.001, ["end"] = true, ["a b"] = {2}}'),
                            (pathlib.Path('a "b"'), '"a \\"b\\""'), (pd.Series([4])[0], "4")):
            with self.subTest(value=value):
                self.assertEqual(mw.lua_value(value), text)
        self.assertRaises(TypeError, mw.lua_value, object())

    def test_the_program_is_found(self):
        self.assertEqual(mw.find_program(BIN), BIN)
        self.assertEqual(mw.find_program(), BIN)  # MESHWRIGHT_BIN of the tests
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "meshwright").symlink_to(BIN)
            before = dict(os.environ)
            self.addCleanup(os.environ.update, before)
            del os.environ["MESHWRIGHT_BIN"]
            os.environ["PATH"] = folder
            self.assertEqual(mw.find_program(), f"{folder}/meshwright")
            near = os.path.relpath(f"{folder}/meshwright")
            self.assertTrue(os.path.samefile(mw.find_program(near), BIN) and os.path.isabs(mw.find_program(near)))
            os.environ["PATH"] = "/nowhere"
            with self.assertRaises(mw.MeshwrightError) as caught:
                mw.find_program()
        self.assertEqual((caught.exception.exit_code, caught.exception.code), (5, "program.missing"))


class Reading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = pathlib.Path(made.name)
        cls.trained = made_runs.make(cls.folder)
        cls.runs = cls.folder / "runs"

    def test_every_table_and_unit_of_the_file(self):
        run = mw.read_run(self.runs / "dp.h5")
        with h5py.File(self.runs / "dp.h5", locking=False) as file:
            tables = [name for name in file if isinstance(file[name], h5py.Dataset) and file[name].dtype.names]
            self.assertGreater(len(tables), 10)
            for name in tables:
                frame = getattr(run, name)
                self.assertEqual(list(frame.columns), list(file[name].dtype.names), name)
                units = {key[len("units_"):]: value.decode() for key, value in file[name].attrs.items()
                         if key.startswith("units_")}
                self.assertEqual(frame.attrs["units"], units, name)
        self.assertEqual(run.steps.attrs["units"]["tokens_per_second"], "tokens/s")
        pd.testing.assert_frame_equal(run.steps, pd.read_hdf(self.runs / "dp.h5", "steps"))
        self.assertEqual(run.memory.category.tolist()[:2], ["parameters", "gradients"])
        peaks = run.memory[run.memory.category != "scratch"]
        self.assertEqual(peaks.peak_bytes.tolist(), peaks.predicted_bytes.tolist())

    def test_what_it_says_of_itself(self):
        run, trained = mw.read_run(self.runs / "dp.h5"), self.trained["dp"]
        self.assertEqual((run.name, run.hash, run.seed, run.status, run.reason),
                         ("dp", trained["hash"], trained["seed"], "done", ""))
        self.assertEqual(run.script, made_runs.SCRIPT)
        self.assertEqual(run.experiment, trained["experiment"])
        self.assertEqual(run.predicted["memory"], trained["predicted"]["memory"])
        self.assertEqual(run.versions["torch"], "2.15.0")
        self.assertEqual(str(run.created.tz), "UTC")
        self.assertEqual(run.plan["ranks"], 2)
        summary = run.summary
        for name in ("step_seconds", "tokens_per_second", "mfu", "bubble_fraction", "peak_bytes", "ranks", "steps"):
            self.assertEqual(summary[name], trained[name], name)
        self.assertEqual(summary.loss, trained["losses"][-1])

    def test_speeds_without_a_result_are_the_same(self):
        for name in ("dp", "slow"):
            copy = self.folder / f"{name}-without.h5"
            shutil.copy(self.runs / f"{name}.h5", copy)
            with h5py.File(copy, "r+", locking=False) as file:
                del file["result"]
            summary = mw.read_run(copy).summary
            for field in ("step_seconds", "tokens_per_second", "mfu"):
                self.assertAlmostEqual(summary[field], self.trained[name][field], delta=1e-12 * abs(summary[field]))

    def test_series(self):
        series = mw.read_run(self.runs / "dp.h5").series
        self.assertEqual(series.index.name, "step")
        self.assertEqual(series["accuracy"].tolist(), [n / 10 for n in range(6)])
        self.assertEqual(set(series.columns), {"accuracy", "loss/late", "step"})  # `step` of the script is its own
        self.assertTrue(series["loss/late"].iloc[:3].isna().all())
        self.assertEqual(len(mw.read_run(self.runs / "slow.h5").series.columns), 0)

    def test_states(self):
        for name, status in (("killed", "killed"), ("live", "running"), ("elsewhere", "running"), ("worse", "failed"),
                             ("whole", "done")):
            self.assertEqual(mw.read_run(self.runs / (name if name == "whole" else f"{name}.h5")).status, status)
        self.assertIn("diverged", mw.read_run(self.runs / "worse.h5").reason)
        self.assertIn("diverged", mw.read_run(self.runs / "worse.h5").events.kind.tolist())
        for name in ("future", "cut", "empty", "words", "foreign", "gone"):
            with self.subTest(name), self.assertRaises(mw.MeshwrightError) as caught:
                mw.read_run(self.runs / f"{name}.h5")
            self.assertEqual((caught.exception.exit_code, caught.exception.code), (2, "runs.unreadable"))

    def test_a_cell_that_trained_differently_has_failed(self):
        cell = self.folder / "cell"
        cell.mkdir()
        shutil.copy(self.runs / "dp.h5", cell / "run.h5")
        run = mw.read_run(cell)
        self.assertEqual((run.status, run.reason), ("done", ""))
        for text, found in (("{", ("done", "")), ('{"kind": "train", "status": "failed"}', ("done", "")),
                            ('{"kind": "cell", "status": "done", "reason": null}', ("done", "")),
                            ('{"kind": "cell", "status": "failed", "reason": "differs"}', ("failed", "differs"))):
            (cell / "result.json").write_text(text)
            run.refresh()
            self.assertEqual((run.status, run.reason), found)

    def test_a_run_that_goes_on_is_read_again(self):
        path = self.folder / "again.h5"
        shutil.copy(self.runs / "slow.h5", path)
        run = mw.read_run(path)
        self.assertEqual(len(run.steps), 4)
        shutil.copy(self.runs / "dp.h5", path)
        self.assertEqual(len(run.steps), 4)
        self.assertEqual(len(run.refresh().steps), 6)

    def test_sweep(self):
        sweep = mw.read_sweep(self.runs / "mixes")
        self.assertEqual(sweep.name, "mixes")
        self.assertEqual(sweep.axes, {"plan": ["dp(2)", "tp(2)"]})
        cells = sweep.cells.set_index("name")
        self.assertEqual(cells.status.to_dict(), {"mix-cccc": "failed", "mix-aaaa": "done", "mix-bbbb": "failed",
                                                  "mix-dddd": "skipped", "mix-eeee": "queued"})
        self.assertEqual(cells.loc["mix-aaaa", "plan"], "dp(2)")
        self.assertEqual(cells.loc["mix-aaaa", "loss"], self.trained["dp"]["losses"][-1])
        self.assertTrue(pd.isna(cells.loc["mix-eeee", "loss"]))
        self.assertEqual(cells.loc["mix-dddd", "reason"], "too wide")
        self.assertEqual(set(sweep.runs), {"mix-aaaa", "mix-bbbb", "mix-cccc"})
        steps = sweep.steps
        self.assertEqual(steps.groupby("cell").size().to_dict(), {"mix-aaaa": 6, "mix-bbbb": 4, "mix-cccc": 4})
        self.assertEqual(steps.attrs["units"]["seconds"], "s")
        self.assertEqual(set(sweep.table("memory")["plan"]), {"dp(2)", "slow"})
        with self.assertRaises(mw.MeshwrightError):
            mw.read_sweep(self.runs)


class Calling(ProgramCase):
    def test_plan(self):
        script = self.write(TWO_RUNS)
        plans = mw.plan(script, set={"steps": 2, "optimizer": {"kind": "sgd", "lr": 0.1}})
        said = self.all("plan", script, "--set", "steps=2", "--set", 'optimizer={kind="sgd", lr=0.1}')
        self.assertEqual([plan["hash"] for plan in plans], [line["hash"] for line in said])
        self.assertEqual(plans.summary["plan"].tolist(), ["dp(2)", "tp(2)"])
        self.assertEqual(plans[0].memory.to_dict("records"), said[0]["memory"])
        self.assertEqual(plans[1].communication["bytes"].tolist(), [use["bytes"] for use in said[1]["communication"]])
        self.assertEqual(plans.communication.groupby("plan").size().tolist(),
                         [len(line["communication"]) for line in said])
        self.assertEqual(plans.memory.attrs["units"]["peak"], "bytes")
        priced = mw.plan(script, cluster="dgx-h100", nodes=1, stack="megatron-core")
        self.assertIn("H100", priced[0]["priced_for"])

    def test_refused(self):
        with self.assertRaises(mw.MeshwrightError) as caught:
            mw.plan(self.write(TWO_RUNS), set={"plan[1].ways": 3})
        error = caught.exception
        self.assertEqual((error.exit_code, error.stage), (3, "plan"))
        self.assertTrue(error.code and error.message and error.hint)
        with self.assertRaises(mw.MeshwrightError) as caught:
            mw.plan(self.folder / "gone.lua")
        self.assertEqual(caught.exception.exit_code, 2)

    def test_run(self):
        run = mw.run(self.script("dp(2)"), set={"steps": 2}, log=self.folder / "runs/a.h5")
        self.assertEqual((run.status, len(run.steps)), ("done", 2))
        folder = mw.run(self.script("dp(2)"), set={"steps": 2}, log=f"{self.folder}/folder/")
        self.assertEqual(folder.path, self.folder / "folder/run.h5")
        below = mw.run(self.script("dp(2)"), set={"steps": 2}, log="below.h5", cwd=self.folder)
        self.assertEqual(below.path, self.folder / "below.h5")

    def test_a_run_that_fails(self):
        with self.assertRaises(mw.MeshwrightError) as caught:
            mw.run(self.script("dp(2)", "e.optimizer = mw.sgd { lr = 1e30 }"), log=self.folder / "worse.h5")
        error = caught.exception
        self.assertEqual(error.exit_code, 1)
        self.assertIn("diverged", error.message)
        self.assertEqual(error.run.status, "failed")
        self.assertEqual(error.results[-1]["status"], "failed")
        with self.assertRaises(mw.MeshwrightError) as caught:
            mw.run(self.script("dp(2)"))
        self.assertEqual(caught.exception.code, "run.no-file")
        self.assertEqual(caught.exception.results[0]["status"], "done")

    def test_all_runs_of_a_script(self):
        with mw.run(self.write(TWO_RUNS), wait=False, log=str(self.folder / "{name}.h5")) as started:
            runs = started.wait_for_all()
        self.assertEqual([run.name for run in runs], ["dp(2)", "tp(2)"])
        self.assertEqual([len(run.steps) for run in runs], [3, 3])
        self.assertEqual(len(started.wait_for_all()), 2)  # it can be asked once the block is left, too
        self.assertIn("dp(2)", started.output)

    def test_a_run_is_watched_and_stopped(self):
        log = self.folder / "long.h5"
        with mw.run(self.script("dp(2)"), set={"steps": 1_000_000}, wait=False, log=log) as started:
            while not (log.exists() and len(started.read(log).steps) > 0):
                self.assertTrue(started.going_on, started.output)
                time.sleep(0.1)
            self.assertEqual(started.read(log).status, "running")
            started.stop()
            with self.assertRaises(mw.MeshwrightError) as caught:
                started.wait(600)
        self.assertEqual((caught.exception.exit_code, caught.exception.run.status), (130, "interrupted"))
        # A block that is left ends its run.
        with mw.run(self.script("dp(2)"), set={"steps": 1_000_000}, wait=False) as started:
            pass
        self.assertFalse(started.going_on)


class Page(pages.PageCase):
    def test_every_block_runs(self):
        """The package's page, in a folder with a run and a sweep of these names."""
        with tempfile.TemporaryDirectory() as made:
            made_runs.make(pathlib.Path(made))
            shutil.copytree(f"{made}/runs", self.folder / "runs")
        shutil.copy(self.folder / "runs/dp.h5", self.folder / "runs/quickstart.h5")
        texts = [pages.part("runs", "Reading a run file"), (SOURCE / "python/README.md").read_text()]
        blocks = [block for text in texts for language, block in pages.blocks(text)
                  if language == "python" and "import meshwright" in block]
        self.assertEqual(len(blocks), 4)
        for block in blocks:
            with self.subTest(block):
                done = subprocess.run([sys.executable, "-c", block], cwd=self.folder, capture_output=True, text=True,
                                      env={**os.environ, "PYTHONPATH": str(pathlib.Path(INSTALLED.name) / "target")},
                                      timeout=900)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout.strip(), "it prints nothing")
        self.assertIn("axis.cannot-split", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
