"""`meshwright runs` and mw.load: runs in every state, listed, shown, compared, exported and
followed."""
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import h5py
import numpy as np
import pandas as pd

import loaded
import made_runs
import pages
from cases import BIN, SOURCE, ProgramCase
from problems import problems

STATUS = {"dp": "done", "slow": "done", "stages": "done", "worse": "failed", "killed": "killed", "live": "running",
          "elsewhere": "running", "future": "unreadable", "cut": "unreadable", "empty": "unreadable",
          "words": "unreadable", "foreign": "unreadable", "whole": "done"}
CELLS = {"mix-cccc": "failed", "mix-aaaa": "done", "mix-bbbb": "failed", "mix-dddd": "skipped", "mix-eeee": "queued"}


class Runs(ProgramCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.made.cleanup)
        cls.trained = made_runs.make(pathlib.Path(cls.made.name))

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.made.name)

    def listed(self, *arguments):
        return [(row["name"], row["status"]) for row in self.all("runs", "list", *arguments)]

    # --- list ---

    def test_every_state(self):
        rows = {row["name"]: row for row in self.all("runs", "list")}
        self.assertEqual({name: row["status"] for name, row in rows.items()}, {**STATUS, **CELLS})
        reason = lambda name: rows[name]["reason"]
        self.assertIn("process is gone", reason("killed"))
        self.assertIn("meshwright.run/2", reason("future"))
        for name in ("empty", "words"):
            self.assertIn("not HDF5", reason(name))
        self.assertIn("schema", reason("foreign"))
        self.assertTrue(reason("cut"))
        self.assertIn("diverged", reason("worse"))
        self.assertEqual(reason("mix-bbbb"), "took longer than 5 s")
        self.assertEqual(reason("mix-cccc"), "its loss is not that of dp8")  # though its run was done
        self.assertEqual(reason("mix-dddd"), "too wide")
        self.assertEqual(rows["mix-aaaa"]["values"], {"plan": "dp(2)", "seed": "1"})
        self.assertEqual(rows["mix-aaaa"]["sweep"], "mixes")
        good, run = rows["dp"], self.trained["dp"]
        self.assertEqual(good["loss"], run["losses"][-1])
        self.assertEqual(good["first_loss"], run["losses"][0])
        for field in ("steps", "tokens_per_second", "step_seconds", "peak_bytes", "mfu", "ranks", "plan_hash",
                      "cpu_seconds_per_step", "startup_seconds", "bubble_fraction"):
            self.assertEqual(good[field], run[field], field)
        self.assertEqual(good["predicted_peak_bytes"], max(s["peak"] for s in run["predicted"]["memory"]))
        self.assertIsNone(rows["cut"]["loss"])
        self.assertEqual(rows["slow"]["seed"], 7)

    def test_table(self):
        done = self.call("runs", "list", "runs/mixes", "runs/dp.h5", "runs/mixes/aaaa")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0].split(), "name mix status steps loss tokens/s peak when file".split())
        self.assertEqual(lines[7].split()[-1], "runs/dp.h5")  # what `runs show` takes
        self.assertEqual([line.split()[0] for line in lines[2:8]],
                         "mix-cccc mix-aaaa mix-bbbb mix-dddd mix-eeee dp".split())  # each once
        self.assertIn("mix-dddd: skipped: too wide", lines)

    def test_where_and_sort(self):
        names = lambda *arguments: [name for name, _ in self.listed(*arguments)]
        self.assertEqual(set(names("--where", 'status == "done" and steps < 5')), {"slow"})
        self.assertEqual(set(names("--where", "values.plan == 'tp(2)'")), {"mix-dddd"})
        self.assertEqual(set(names("--where", "seed == 7 and not sweep")), {"slow"})
        self.assertEqual(names("--where", "peak_bytes > 1*TiB"), [])
        self.assertEqual(set(names("--where", "name:find('^c') and loss == nil")), {"cut"})
        # NaN is less than nothing, and a run without a loss is none that has a small one.
        done = self.call("runs", "list", "--where", "loss < 100", "--json")
        found = {row["name"] for row in self.lines(done)}
        self.assertIn("dp", found)
        self.assertNotIn("worse", found)
        self.assertIn("7 runs left out", done.stderr)
        ordered = self.all("runs", "list", "--sort", "loss")
        losses = [row["loss"] for row in ordered]
        known = [loss for loss in losses if loss is not None]
        self.assertEqual(losses[: len(known)], sorted(known))
        self.assertEqual([row["loss"] for row in self.all("runs", "list", "--sort", "loss", "--reverse")][: len(known)],
                         sorted(known, reverse=True))
        self.assertEqual(names("runs/mixes", "--sort", "values.plan")[-1], "mix-dddd")

    def test_conditions_that_will_not_do(self):
        for code, where in (("where.syntax", 'status = "done"'), ("where.syntax", "loss <"), ("where.field", "lost < 2"),
                            ("where.field", "os.exit(3)"), ("where.field", "require 'io'"), ("where.error", "name < 2"),
                            ("where.error", "(function() while true do end end)()"),
                            ("where.error", "('x'):rep(1e9) == ''")):
            with self.subTest(where):
                self.refused(2, code, "runs", "list", "--where", where)
        self.assertIn("==", self.refused(2, "where.syntax", "runs", "list", "--where", 'status = "done"')["hint"])
        self.assertIn("loss", self.refused(2, "where.field", "runs", "list", "--where", "los < 2")["hint"])
        self.refused(2, "sort.field", "runs", "list", "--sort", "los")

    def test_what_is_not_there(self):
        self.refused(2, "file.missing", "runs", "list", "runs/gone")
        self.assertIn("dp.h5", self.refused(2, "file.missing", "runs", "show", "runs/dpp.h5")["hint"])
        with tempfile.TemporaryDirectory() as empty:
            done = loaded.run([BIN, "runs", "list", "--json"], cwd=empty, text=True)
            self.assertEqual(problems(self.lines(done)), ["file.missing"])
            self.refused(2, "runs.none", "runs", "list", empty)
        self.refused(2, "runs.several", "runs", "show", "runs/mixes")
        self.refused(2, "runs.unreadable", "runs", "show", "runs/cut.h5")
        self.refused(2, "runs.unreadable", "runs", "tail", "runs/words.h5")

    def test_broken_bytes_are_a_row_each(self):
        """Wherever a run file is cut off, the list has a line for it."""
        whole = (self.folder / "runs/dp.h5").read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            for n in range(24):
                pathlib.Path(folder, f"{n:02}.h5").write_bytes(whole[: len(whole) * n // 24])
            self.assertEqual(len(self.all("runs", "list", folder)), 24)
            done = self.call("runs", "export", folder, "--table", "summary")
            self.assertEqual((done.returncode, len(pd.read_csv(io.StringIO(done.stdout)))), (0, 24))

    # --- show, compare ---

    def test_show(self):
        done = self.call("runs", "show", "runs/dp.h5")
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("dp: done", "experiment", "batch", "versions", "torch", "plan hash", "result", "measured",
                      "predicted", "a rank's peak", "all-reduce", "bytes a rank and step"):
            self.assertIn(words, done.stdout)
        self.assertIn("diverged", self.call("runs", "show", "runs/worse.h5").stdout.split("events")[1])
        shown = self.only("runs", "show", "runs/whole")
        self.assertEqual(shown["status"], "done")
        peak = shown["memory_beside_predicted"]["a rank's peak"]
        self.assertEqual((peak["bytes"], peak["predicted_bytes"]),
                         (self.trained["dp"]["peak_bytes"], self.trained["dp"]["predicted"]["memory"][0]["peak"]))
        self.assertEqual(shown["communication"], self.trained["dp"]["communication"])

    def test_compare_shows_what_differs(self):
        compared = self.only("runs", "compare", "runs/dp.h5", "runs/slow.h5")
        self.assertEqual(compared["runs"], ["dp", "slow"])
        self.assertEqual(compared["differences"]["seed"], [0, 7])
        keys = set(compared["differences"])
        self.assertNotIn("batch", keys)
        self.assertFalse({key for key in keys if re.match(r"name|log|model|mix", key)}, keys)
        # At the last step that both have.
        one, other = self.trained["dp"]["losses"], self.trained["slow"]["losses"]
        self.assertEqual(compared["results"]["loss at step 3"], [one[3], other[3]])
        self.assertAlmostEqual(compared["deltas"]["loss at step 3"][1], other[3] / one[3] - 1)
        self.assertEqual(compared["deltas"]["peak_bytes"][0], 0)
        self.assertEqual(compared["results"]["bytes over dp"][0],
                         sum(c["bytes"] for c in self.trained["dp"]["communication"] if c["axis"] == "dp"))

    def test_compare_other_plans_and_baseline(self):
        compared = self.only("runs", "compare", "runs/dp.h5", "runs/stages.h5", "--baseline", "stages")
        self.assertEqual(compared["baseline"], "stages")
        self.assertEqual(compared["deltas"]["peak_bytes"][1], 0)
        self.assertIn("mix", compared["differences"])
        self.assertFalse([key for key in compared["differences"] if key.startswith("plan[")])
        self.assertEqual(compared["results"]["bytes over pp"][0], 0)
        self.assertGreater(compared["results"]["bytes over pp"][1], 0)
        text = self.call("runs", "compare", "runs/dp.h5", "runs/stages.h5").stdout
        self.assertIn("dp (baseline)", text)
        self.assertRegex(text, r"\([+-]\d+\.\d %\)")
        many = self.call("runs", "compare", "runs")
        self.assertEqual(many.returncode, 0, many.stderr)
        self.assertIn("words: unreadable", many.stdout)
        self.assertIn("another machine", many.stdout)
        self.refused(2, "runs.baseline", "runs", "compare", "runs/dp.h5", "runs/slow.h5", "--baseline", "slo")
        self.refused(2, "compare.count", "runs", "compare", "runs/dp.h5")
        same = self.call("runs", "compare", "runs/dp.h5", "runs/whole")
        self.assertIn("do not differ", same.stdout)

    # --- export ---

    def exported(self, *arguments):
        done = self.call("runs", "export", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_steps_in_pandas(self):
        done = self.exported("--csv", "runs/dp.h5", "runs/worse.h5", "runs/cut.h5")
        self.assertIn("left out: cut", done.stderr)
        csv = pd.read_csv(io.StringIO(done.stdout), dtype={"run": str, "hash": str})
        whole = pd.concat([pd.read_hdf(self.folder / f"runs/{name}.h5", "steps") for name in ("dp", "worse")],
                          ignore_index=True)
        self.assertEqual(csv["run"].tolist(), ["dp"] * 6 + ["worse"] * 6)
        for column in whole.columns:  # types, values, NaN and infinities
            self.assertEqual(csv[column].dtype, whole[column].dtype, column)
            np.testing.assert_array_equal(csv[column], whole[column], column)
        self.assertTrue(csv[csv.run == "worse"]["loss"].isna().any())
        self.assertEqual(csv["series.accuracy"].tolist()[:6], [n / 10 for n in range(6)])
        late = csv["series.loss/late"].tolist()
        self.assertTrue(math.isnan(late[0]) and late[3] == math.inf and late[4] == 1)

    def test_names_that_are_formulas(self):
        """Spreadsheets would compute them, and may start programs for them."""
        shutil.copy(self.folder / "runs/dp.h5", self.folder / "formula.h5")
        self.addCleanup((self.folder / "formula.h5").unlink)
        with h5py.File(self.folder / "formula.h5", "r+") as file:
            file.attrs["name"] = np.bytes_("=cmd|' /C calc'!A0")
        row = pd.read_csv(io.StringIO(self.exported("formula.h5", "--table", "summary").stdout))
        self.assertEqual(row["run"].tolist(), ["'=cmd|' /C calc'!A0"])

    def test_jsonl(self):
        out = self.folder / "steps.jsonl"
        self.exported("--jsonl", "runs/dp.h5", "-o", "steps.jsonl")
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([row["step"] for row in rows], list(range(6)))
        self.assertEqual(rows[2]["loss"], self.trained["dp"]["losses"][2])
        self.assertIsNone(rows[0]["series.loss/late"])
        self.assertEqual(rows[3]["series.loss/late"], math.inf)
        frame = pd.read_json(out, lines=True)
        self.assertEqual((frame["step"].dtype, frame["loss"].dtype), (np.int64, np.float64))

    def test_other_tables(self):
        memory = pd.read_csv(io.StringIO(self.exported("runs/dp.h5", "--table", "memory").stdout))
        self.assertEqual(memory["peak_bytes"].dtype, np.int64)
        self.assertEqual(memory[memory.category == "parameters"]["peak_bytes"].max(),
                         self.trained["dp"]["memory"]["parameters"])
        sent = pd.read_csv(io.StringIO(self.exported("runs/dp.h5", "--table", "communication").stdout))
        self.assertEqual(set(sent["axis"]), {c["axis"] for c in self.trained["dp"]["communication"]})
        self.assertEqual((sent["bytes"].dtype, sent["seconds"].dtype), (np.int64, np.float64))

    def test_each_table_has_what_the_sweep_set(self):
        for table in ("steps", "memory", "communication", "summary"):
            with self.subTest(table):
                rows = pd.read_csv(io.StringIO(self.exported("runs/mixes", "runs/dp.h5", "--table", table).stdout))
                self.assertEqual(rows.columns[0], "run")
                self.assertEqual(set(rows[rows.run == "mix-aaaa"]["values.plan"]), {"dp(2)"})
                self.assertTrue(rows[rows.run == "dp"]["values.plan"].isna().all())

    def test_summary(self):
        rows = pd.read_csv(io.StringIO(self.exported("runs", "--table", "summary").stdout),
                           dtype={"run": str, "hash": str}).set_index("run")
        self.assertEqual(dict(rows["status"]), {**STATUS, **CELLS})
        self.assertEqual(rows.loc["dp", "loss"], self.trained["dp"]["losses"][-1])
        self.assertEqual(rows["loss"].dtype, np.float64)
        self.assertEqual(rows.loc["dp", "experiment.batch"], 4)
        self.assertEqual(rows.loc["mix-aaaa", "values.plan"], "dp(2)")
        self.assertTrue(rows.loc["cut"].drop(["status", "reason", "path"]).isna().all())

    # --- tail ---

    def test_last_steps(self):
        done = self.call("runs", "tail", "runs/dp.h5", "-n", "2")
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["4", "5"])
        self.assertIn("dp: done", done.stderr)
        steps = self.all("runs", "tail", "runs/slow.h5")
        self.assertEqual([s["loss"] for s in steps], self.trained["slow"]["losses"])
        done = self.call("runs", "tail", "-f", "runs/killed.h5", "-n", "0")  # ends at once
        self.assertEqual(done.stdout, "")
        self.assertIn("killed", done.stderr)

    def test_follow(self):
        script = self.folder / "long.lua"
        script.write_text(made_runs.SCRIPT.split("mw.train")[0] + """
        local seconds = 0
        mw.train(experiment("runs/live/long.h5", { dp(2) }, { steps = 100000, observe = function() return {} end }))
        """)
        run = subprocess.Popen([BIN, "run", script], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(shutil.rmtree, self.folder / "runs/live")
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        while not (self.folder / "runs/live/long.h5").exists():
            self.assertIsNone(run.poll())
        self.assertEqual(self.listed("runs/live"), [("long", "running")])
        said = self.folder / "said.txt"
        with open(said, "w") as errors:
            tail = subprocess.Popen([BIN, "runs", "tail", "-f", "-n", "0", "runs/live/long.h5", "--json"], cwd=self.folder,
                                    stdout=subprocess.PIPE, stderr=errors, text=True)
        self.addCleanup(tail.stdout.close)
        self.addCleanup(tail.kill)
        seen = [json.loads(tail.stdout.readline())["step"] for _ in range(3)]
        run.send_signal(signal.SIGINT)
        seen += [json.loads(line)["step"] for line in tail.stdout]
        tail.wait(timeout=300)
        run.wait(timeout=300)
        with h5py.File(self.folder / "runs/live/long.h5", locking=False) as f:
            last = len(f["steps"]) - 1
        self.assertEqual(seen, list(range(seen[0], last + 1)))  # none twice, none left out
        self.assertIn("long: interrupted", said.read_text())
        self.assertEqual(tail.returncode, 0)

    # --- mw.load ---

    def lua(self, text, code=0):
        script = self.folder / "load.lua"
        script.write_text('local mw = require "meshwright"\n' + text)
        done = self.call("run", script)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_load_is_what_train_returned(self):
        self.lua(made_runs.SCRIPT.split("mw.train")[0] + """
        local function same(a, b, path)
          if type(a) ~= "table" then
            return assert(a == b or a ~= a and b ~= b, path .. ": " .. tostring(a) .. ", " .. tostring(b))
          end
          for key, value in pairs(a) do
            if key ~= "text" then same(value, b[key], path .. "." .. tostring(key)) end
          end
        end
        local log = "loaded/%s.h5"
        for i, change in ipairs { {}, { observe = function(step) return { a = step } end }, { loss_scale = 1024 },
                                  { optimizer = mw.sgd { lr = 1e30 } }, { check = true } } do
          local trained = mw.train(experiment(log:format(i), i == 2 and { tp(2) } or { dp(2) }, change))
          same(trained, mw.load(log:format(i)), "run")
        end
        """, code=1)

    def test_what_a_loaded_run_has_beside(self):
        done = self.lua("""
        local run = mw.load "runs/dp.h5"
        assert(run.name == "dp" and run.seed == 0 and run.status == "done" and run.reason == nil)
        assert(#run.per_step.step == 6 and run.per_step.step[3] == 2 and run.per_step.loss[6] == run.losses[6])
        assert(run.series.accuracy[3] == 0.2 and run.series.step[3] == 2)
        assert(run.series["loss/late"][1] ~= run.series["loss/late"][1] and run.series["loss/late"][4] == math.huge)
        assert(run.plan_description.ranks == 2 and run.experiment.batch == 4)
        print(run)
        print(pcall(function() return run.lossses end))
        local cells = mw.load "runs/mixes"
        assert(#cells == 5 and cells[2].losses[1] == run.losses[1] and cells[1].status == "failed")
        assert(cells[4].reason == "too wide" and cells[4].losses == nil and cells[4].values.plan == "tp(2)")
        print(pcall(function() return cells[4].loses end))
        print(cells)
        local killed = mw.load "runs/killed.h5"
        assert(killed.status == "killed" and killed.losses[6] == run.losses[6])
        assert(mw.load "runs/whole".name == "whole")
        """)
        self.assertIn("on 2 ranks: done after 6 of 6 steps", done.stdout)
        self.assertIn('no field "lossses"', done.stdout)
        self.assertIn('no field "loses"', done.stdout)
        self.assertIn("mix-dddd: skipped (too wide)\nmix-eeee: queued", done.stdout)

    def test_tables_alone_say_the_same(self):
        """A run that did not end has no summary; what its tables say is that."""
        with h5py.File(self.folder / "runs/stages.h5", locking=False) as f:
            kept = json.loads(f["result"][()])
        bare = self.folder / "bare.h5"
        shutil.copy(self.folder / "runs/stages.h5", bare)
        with h5py.File(bare, "r+", locking=False) as f:
            del f["result"]
        shown = self.only("runs", "show", bare)
        run = self.trained["stages"]
        for key in ("memory", "communication", "losses", "grad_norms", "steps", "ranks", "plan_hash", "peak_bytes",
                    "predicted"):
            self.assertEqual(shown[key], run[key], key)
        for key in ("step_seconds", "tokens_per_second", "mfu", "bubble_fraction"):
            self.assertAlmostEqual(shown[key] / run[key], 1, places=9)
            self.assertEqual(kept[key], run[key])

    def test_load_refuses(self):
        for problem, call in (("file.missing", 'mw.load "runs/non.h5"'), ("runs.unreadable", 'mw.load "runs/cut.h5"'),
                              ("script.argument", "mw.load(3)"), ("script.argument", "mw.load()")):
            with self.subTest(call):
                done = self.call("run", self.write('local mw = require "meshwright"\n' + call), "--json")
                self.assertEqual(problems(self.lines(done)), [problem])
                self.assertEqual(self.lines(done)[0]["line"], 2)

    # --- docs/reading.md ---

    def test_snippets_of_the_page(self):
        page = pages.part("reading", "Reading runs")
        self.exported("runs/dp.h5", "runs/slow.h5", "-o", "steps.csv")
        blocks = pages.blocks(page)
        count = {"python": 0, "lua": 0, "sh": 0}
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        for language, text in blocks:
            count[language] += 1
            if language == "python":
                exec(compile(text, "docs/reading.md", "exec"), {})
            elif language == "lua":
                self.lua(text)
            else:
                for line in text.splitlines():
                    command = line.replace("meshwright ", "", 1)
                    done = subprocess.run(f'"$MESHWRIGHT_BIN" {command}', shell=True, capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(count, {"python": 3, "lua": 1, "sh": 2})


if __name__ == "__main__":
    unittest.main(verbosity=2)
