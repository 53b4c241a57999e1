"""Sweeps: what runs, what is found done, what fails and why, and what a kill leaves."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

import h5py

import busy
from cases import BIN, TEST_PLUGINS, ProgramCase
from problems import problems

# A model that trains in a moment; the %s are more of the base, and the rest of the sweep.
SCRIPT = """\
local mw = require "meshwright"
local dp, tp, zero, pp, misbehaving = mw.plugins("dp", "tp", "zero", "pp", "misbehaving")
local sweep = mw.sweep {
  name = "s",
  base = {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 },
    data = mw.synthetic {}, sequence = 8, batch = 4, threads = 1,
    optimizer = mw.adamw { lr = 1e-2 }, steps = 2, %s
  },
  %s
}
"""
GO = "local cells = sweep:go()\n"


class SweepCase(ProgramCase):
    def sweep_script(self, rest, base="", after=GO):
        return self.write(SCRIPT % (base, rest) + after)

    def sweep(self, *arguments, command="sweep", **environment):
        return self.call(command, "script.lua", "--plugin-path", TEST_PLUGINS, *arguments, **environment)

    def cells(self, *arguments, code=0, **environment):
        """The rows of a call, by name, in order."""
        done = self.sweep("--json", *arguments, **environment)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        rows = {line["name"]: line for line in self.lines(done) if line["kind"] == "cell"}
        # They come as they end; the sweep has them in the grid's order.
        file = self.folder / "runs/s/sweep.json"
        names = [cell["name"] for cell in json.loads(file.read_text())["cells"]] if file.exists() else list(rows)
        return {name: rows[name] for name in names if name in rows}

    def page(self, *inputs):
        """The data of a report's page."""
        self.only("report", *inputs, "-o", "page.html")
        return json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', (self.folder / "page.html").read_text(), re.S)[1])

    def states(self, rows):
        return {name: row["status"] for name, row in rows.items()}

    def index(self):
        return json.loads((self.folder / "runs/s/sweep.json").read_text())


class Runs(SweepCase):
    def test_a_grid_runs_once_and_is_found_done(self):
        self.sweep_script("over = { plan = { { dp(2) }, { tp(2) } }, seed = { 1, 2 } }, same_loss_as = 'dp(2)',")
        rows = self.cells()
        self.assertEqual(list(rows), ["dp(2) seed=1", "dp(2) seed=2", "tp(2) seed=1", "tp(2) seed=2"])
        for row in rows.values():
            self.assertEqual((row["status"], row["reused"], len(row["losses"])), ("done", False, 2))
            folder = self.folder / row["folder"]
            self.assertTrue(set(os.listdir(folder)) >= {"run.h5", "result.json", "script.lua", "output.txt"})
            self.assertEqual(json.loads((folder / "result.json").read_text())["hash"], row["hash"])
            self.assertTrue(folder.name.endswith("-" + row["hash"]))
        # In each round every mix once.
        turns = [name[:5] for name, row in sorted(rows.items(), key=lambda item: item[1]["turn"])]
        self.assertEqual([set(turns[:2]), set(turns[2:])], [{"dp(2)", "tp(2)"}] * 2)
        right = rows["tp(2) seed=2"]["same_loss_as"]
        self.assertEqual((right["compared"], right["cell"]), (True, "dp(2) seed=2"))
        self.assertLess(right["difference"], 1e-4)
        self.assertNotEqual(rows["dp(2) seed=1"]["losses"], rows["dp(2) seed=2"]["losses"])
        index = self.index()
        self.assertEqual((index["schema"], index["order"]), ("meshwright.sweep/1", 1))
        self.assertEqual(index["verdict"]["impossible"], [])
        self.assertTrue((index["verdict"]["fastest"] is None) != (index["verdict"]["undecided"] == []), index["verdict"])
        self.assertEqual(index["axes"], [{"key": "plan", "values": ["dp(2)", "tp(2)"]},
                                         {"key": "seed", "values": ["1", "2"]}])
        self.assertEqual([(cell["name"], cell["status"], cell["id"]) for cell in index["cells"]],
                         [(name, "done", row["hash"]) for name, row in rows.items()])
        self.sweep(command="plan")  # which changes no result, and keeps what was found
        self.assertEqual(self.index(), index)
        files = {path: path.stat().st_mtime_ns for path in self.folder.glob("runs/s/*/run.h5")}

        again = self.cells()
        self.assertEqual({name: (row["reused"], row["losses"]) for name, row in again.items()},
                         {name: (True, row["losses"]) for name, row in rows.items()})
        # One axis has a value more, another one less: what is new runs, and nothing else.
        self.sweep_script("over = { plan = { { dp(2) }, { zero(2) } }, seed = { 1 } },")
        rows = self.cells()
        self.assertEqual({name: row["reused"] for name, row in rows.items()},
                         {"dp(2) seed=1": True, "zero(2) seed=1": False})
        # Another experiment under the same names is another cell.
        rows = self.cells("--set", "steps=3")
        self.assertEqual([(row["reused"], len(row["losses"])) for row in rows.values()], [(False, 3)] * 2)
        self.assertEqual(files, {path: path.stat().st_mtime_ns for path in files}, "what was run is kept as it is")

    def test_in_lua_and_by_run(self):
        self.sweep_script("over = { ['optimizer.lr'] = { 0.01, 0.02 } },", after="""\
print("before")
local cells = sweep:go { only = "0.02" }
assert(#cells == 1 and cells[1].name == "optimizer.lr=0.02" and cells[1].values["optimizer.lr"] == "0.02")
assert(cells[1].status == "done" and #cells[1].losses == 2 and cells[1].predicted.ranks == 1)
assert(tostring(cells):find("1 done"))
assert(not pcall(function() return sweep.gone end))
""")
        done = self.sweep(command="run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("before"), 1, "what the script prints in a cell is the cell's")
        self.assertIn("before", next(self.folder.glob("runs/s/*/output.txt")).read_text())
        self.assertRegex(done.stderr, r"\[1/1\] done +[\d.]+ s  optimizer\.lr=0\.02  loss [\d.]+  [\d.]+k? tokens/s")
        self.assertEqual([c["status"] for c in self.index()["cells"]], ["queued", "done"])

    def test_grids_in_grids(self):
        self.sweep_script("""over = {
          mix = {
            { name = "plain", plan = { dp(2) } },
            { name = "pipe", plan = { pp(2) }, over = { microbatch = { 1, 2 }, ["plan[1].schedule"] = { "1f1b", "gpipe" } } },
          },
          recompute = function(cell) return cell.mix == "plain" and { "none", "full" } or nil end,
        },
        skip = function(cell) return cell.microbatch == 2 and cell["plan[1].schedule"] == "gpipe" and "of no interest" end,
        """)
        rows = self.cells("--dry")
        self.assertEqual(list(rows), ["plain recompute=none", "plain recompute=full",
                                      "pipe microbatch=1 plan[1].schedule=1f1b",
                                      "pipe microbatch=1 plan[1].schedule=gpipe",
                                      "pipe microbatch=2 plan[1].schedule=1f1b",
                                      "pipe microbatch=2 plan[1].schedule=gpipe"])
        self.assertEqual([row["status"] for row in rows.values()], ["queued"] * 5 + ["skipped"])
        self.assertEqual(list(rows.values())[-1]["reason"], "of no interest")
        self.assertFalse((self.folder / "runs").exists(), "--dry leaves nothing behind")
        text = self.sweep("--dry").stdout
        self.assertRegex(text, r"5 of 6 cells would run\n  predicted .+ one after the other: .+ of steps and 5 s of starts; "
                               r"up to .+ if other programs disturb every cell, .*; about [\d.]+ [KM]iB of files\n")
        self.assertRegex(text, r"pipe microbatch=1 plan\[1\]\.schedule=1f1b +would run +[\d.]+ ms")

    def test_repeats(self):
        self.sweep_script("over = { plan = { { dp(2) } } }, repeats = 3,", base="seed = 5,")
        self.assertEqual(list(self.cells("--dry")), [f"dp(2) seed={n}" for n in (5, 6, 7)])
        self.sweep_script("repeats = { 2, seed = 'same' },")
        done = self.sweep()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"base +2 done +[\d.]+ ± 0\.0000 ")
        rows = self.cells()
        self.assertEqual([row["hash"][16:] for row in rows.values()], [".1", ".2"])
        self.assertEqual(*[row["losses"] for row in rows.values()])

    def test_repeats_are_the_same_everywhere(self):
        """In the sweep, its report and `runs compare`, whatever is of a run alone."""
        self.sweep_script("over = { seed = { 1, 2, 3 } },", base='checkpoint = { path = "kept/{name}" },')
        done = self.sweep()
        self.assertRegex(done.stdout, r"base +3 done ")
        group, = self.page("runs/s")["groups"]
        self.assertEqual((group["n"], group["m"]["loss"][2]), (3, 3))
        losses = [row["losses"][-1] for row in self.cells().values()]
        self.assertAlmostEqual(group["m"]["loss"][0], sum(losses) / 3, places=5)
        rows = self.cells()
        self.assertEqual(len({row["hash_without_seed"] for row in rows.values()}), 1)
        self.assertEqual(len({row["hash"] for row in rows.values()}), 3)
        self.assertEqual(self.only("runs", "compare", "runs/s", "--json")["differences"].keys(), {"seed", "sweep: seed"})

    def test_what_is_of_a_run_alone_makes_no_other_experiment(self):
        text = SCRIPT.split("local sweep")[0] + """local function go(n, more)
          local e = { model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {},
            sequence = 8, batch = 4, plan = { dp(2) }, optimizer = mw.adamw { lr = 1e-3 }, steps = 2, log = "runs/" .. n .. ".h5" }
          for key, value in pairs(more) do e[key] = value end
          return mw.train(e) end
        go(1, {}) go(2, { timeout = 200, name = "x" }) go(3, { checkpoint = { path = "kept" } }) go(4, { account = true, trace = { 1 } })
        go(5, { seed = 3 }) go(6, { batch = 8 })"""
        results = self.all("run", self.write(text), "--plugin-path", TEST_PLUGINS)
        self.assertEqual(len({r["hash"] for r in results[:4]}), 1)
        self.assertEqual([g["n"] for g in self.page("runs")["groups"]], [5, 1])
        compared = self.only("runs", "compare", *[f"runs/{n}.h5" for n in range(1, 5)], "--json")
        self.assertEqual(compared["differences"], {})

    def test_the_fastest_of_each_kind_of_work(self):
        """The same in the terminal, in JSON, on the page and in the report's JSON; and one interval."""
        self.sweep_script("""over = { model = { deep = mw.llama { layers = 3, hidden = 16, heads = 2, ffn = 32, vocab = 32 },
          small = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 32, vocab = 32 } }, plan = { { dp(2) }, { tp(2) } },
          seed = { 1, 2 } },""", base="steps = 6,")
        with busy.Machine(self.folder / "quiet", others=0) as root:
            done = self.sweep("--json", MESHWRIGHT_SYSTEM_ROOT=root)
            text = self.sweep(MESHWRIGHT_SYSTEM_ROOT=root).stdout
        verdict = self.lines(done)[-1]
        self.assertEqual([(kind["name"], len(kind["mixes"])) for kind in verdict["kinds"]], [("deep", 2), ("small", 2)])
        self.assertIsNone(verdict["fastest"])
        page = self.page("runs/s")
        groups = {g["name"]: g for g in page["groups"]}
        report = self.only("report", "runs/s", "-o", "page.html")
        for kind, same in zip(verdict["kinds"], report["kinds"]):
            self.assertEqual((kind["fastest"] is None), kind["undecided"] != [], kind)
            self.assertRegex(text, rf"\n  {kind['name']}: (fastest|undecided): ")
            self.assertRegex(page["headline"], rf" {kind['name']}: (fastest|undecided)")
            self.assertEqual((same["fastest"] or {}).get("name"), kind["fastest"])
            self.assertEqual((same["mixes"], same["undecided"]), (kind["mixes"], kind["undecided"]))
        self.assertEqual([report[key] for key in ("answer", "speeds")], [verdict[key] for key in ("answer", "speeds")])
        self.assertEqual(len(verdict["speeds"]), 4)
        for speed in verdict["speeds"]:
            group = groups[speed["mix"]]
            self.assertAlmostEqual(group["m"]["tokens"][0] / speed["tokens_per_second"], 1, places=4)
            if speed["half"] is None:
                self.assertIsNone(group["half"])
            else:
                self.assertAlmostEqual(group["half"] * group["m"]["tokens"][0] / speed["half"], 1, places=3)

    def test_refused_and_alike(self):
        """What the planner refuses is a result; what differs in nothing is run once."""
        self.sweep_script("over = { plan = { { dp(2) }, { tp(3) }, { dp { 2, overlap = true } } } },")
        rows = self.cells()
        self.assertEqual(self.states(rows), {"dp(2)": "done", "tp(3)": "refused", "dp { 2, overlap = true }": "skipped"})
        self.assertIn("tp(3) cannot split", rows["tp(3)"]["reason"])
        self.assertIn('the same experiment as "dp(2)"', rows["dp { 2, overlap = true }"]["reason"])


class Judged(SweepCase):
    def test_prove_and_verify_take_each_plan_of_a_sweep(self):
        after = """for _, cell in ipairs(sweep:go()) do print(cell.values.plan, cell.values.seed, cell.status) end
          sweep:report "s.html" """
        self.sweep_script("over = { plan = { { dp(2) }, { tp(2) } }, seed = { 1, 2 } },", after=after)
        for verb, verdict in (("prove", "proved"), ("verify", "equal")):
            done = self.sweep("--json", command=verb)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            found = [line for line in self.lines(done) if line["kind"] == verb]
            self.assertEqual([(line["plan"], line["verdict"]) for line in found], [("dp(2)", verdict), ("tp(2)", verdict)])
            text = self.sweep(command=verb).stdout
            self.assertRegex(text, rf"dp\(2\)\s+1\s+{verdict}\n")
            self.assertFalse((self.folder / "s.html").exists())
            self.assertRegex(text, rf"sweep s: {verb} of 2 plans\n\ndp\(2\) seed=1 and 1 cell of the same plan:")
        self.sweep_script("over = { plan = { { dp(2) }, { tp(3) } } },")
        done = self.sweep(command="prove")
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"tp\(3\):\n  tp\(3\) cannot split")

    def test_a_script_without_a_sweep_is_not_trained(self):
        self.write(SCRIPT.split("local sweep")[0] + """mw.train { model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 32,
          vocab = 32 }, data = mw.synthetic {}, sequence = 8, batch = 4, optimizer = mw.adamw { lr = 1e-2 }, steps = 2, log = "a.h5" }""")
        done = self.sweep("--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["script.no-verb"]))
        self.assertFalse((self.folder / "a.h5").exists())
        # What is swept counts, and not that the script speaks of it.
        self.write("-- mw.sweep would sweep\n" + (self.folder / "script.lua").read_text())
        done = self.sweep("--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["script.no-verb"]))
        self.assertFalse((self.folder / "a.h5").exists())

    def test_one_run_of_each_mix_traces_its_steps(self):
        self.sweep_script("over = { plan = { { dp(2) }, { tp(2) } }, seed = { 1, 2 } },")
        traced = {name: len(h5py.File(self.folder / row["folder"] / "run.h5")["trace"]) > 0 for name, row in self.cells().items()}
        self.assertEqual(traced, {"dp(2) seed=1": True, "dp(2) seed=2": False, "tp(2) seed=1": True, "tp(2) seed=2": False})
        self.sweep_script("over = { seed = { 5, 6 } },", base="trace = { 1 },")
        self.assertTrue(all(len(h5py.File(self.folder / row["folder"] / "run.h5")["trace"]) for row in self.cells().values()))


class Disturbed(SweepCase):
    def test_disturbed_cells_run_again_and_decide_nothing_by_wall_seconds(self):
        # A second or more, also where a step takes 0.3 ms: cores are counted in hundredths of a
        # second.
        self.sweep_script("over = { plan = { { dp(2) }, { tp(2) } } },", base="steps = 3000,")
        with busy.Machine(self.folder / "system", others=1, run=True) as root:
            done = self.sweep("--json", "--reruns", "1", MESHWRIGHT_SYSTEM_ROOT=root)
        self.assertEqual(done.returncode, 0, done.stderr)
        *rows, verdict = self.lines(done)
        self.assertEqual([(row["status"], row["reruns"], row["timing"]["disturbed"]) for row in rows],
                         [("done", 1, True)] * 2)
        for row in rows:
            self.assertGreaterEqual(row["timing"]["others_cores"], 0.9)
            # Other programs explain a longer step alone; and the prediction may be near enough.
            if row["parting"]["why"] and row["parting"]["share"] > 0:
                self.assertIn("other programs had", row["parting"]["text"])
        self.assertEqual(done.stderr.count("it runs again when the others are done"), 2)
        self.assertFalse((self.folder / "runs/s/.earlier").exists(), "one run is kept of a cell that is done")
        self.assertIn(verdict["by"], (None, "cpu"))
        self.assertEqual(self.index()["verdict"], verdict)
        shown = self.call("runs", "show", self.folder / rows[0]["folder"])
        self.assertRegex(shown.stdout, r"others_cores +\d+\.\d+\n +other programs had .* of \d+ cores .*not the machine's own")
        text = self.sweep().stdout
        self.assertRegex(text, r"dp\(2\) +done .* \d+\.\d, 1 disturbed")
        # The page says so above its numbers, and in a column that stands at its left.
        self.assertEqual([(g["disturbed"], g["ran"]) for g in self.page("runs/s")["groups"]], [(1, 1)] * 2)
        # When the machine does nothing else they are measured anew.
        with busy.Machine(self.folder / "quiet", others=0) as root:
            again = self.cells("--retry", "disturbed", MESHWRIGHT_SYSTEM_ROOT=root)
        self.assertEqual([(row["reused"], "reruns" in row, row["timing"]["disturbed"]) for row in again.values()],
                         [(False, False, False)] * 2)


class Wrong(SweepCase):
    def test_mistakes_are_told_at_once(self):
        def told(rest, base=""):
            self.sweep_script(rest, base)
            done = self.sweep("--json")
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertFalse((self.folder / "runs").exists())
            return problems(self.lines(done))

        self.assertEqual(told("over = { recomptue = { 'none', 'full' }, batch = {}, seed = { 1, 2, 1 }, steps = 4 },"),
                         ["sweep.axis over.batch", "option.unknown over.recomptue", "sweep.axis over.seed[3]",
                          "sweep.axis over.steps"])
        self.assertEqual(told("over = { mix = { { plan = { dp(2) }, microbach = 1 } } }, same_loss_as = 3,"),
                         ["option.unknown over.mix[1].microbach", "option.value same_loss_as"])
        self.assertEqual(told("over = { recompute = { 'none', 'ful' }, ['model.layrs'] = { 2, 3 } },"),
                         ["option.unknown over.model.layrs", "option.choice over.recompute"])
        self.assertEqual(told("over = { seed = { 1 } }, same_loss_as = 'dp(3)',"), ["sweep.like same_loss_as"])
        self.assertEqual(told("over = { seed = { 1 } }, skip = function() return 3 end,"), ["function.result skip"])
        self.assertEqual(told("over = { seed = { 1 } },", "log = 'x.h5',"), ["sweep.own base.log"])
        self.assertEqual(told("over = { seed = { 1 } }, repeats = 2,"), ["sweep.axis repeats"])
        self.sweep_script("over = { seed = { 1, 2 } },")
        for arguments, problem in [(["--set", "seed=3"], "sweep.set base.seed"), (["--only", "lr"], "sweep.only only"),
                                   (["--shard", "3/2"], "option.value shard"), (["--retry", "all of them"],
                                                                                "option.choice retry")]:
            with self.subTest(arguments):
                done = self.sweep("--json", *arguments)
                self.assertEqual((done.returncode, problems(self.lines(done))), (2, [problem]), done.stderr)
        self.write("local x = 1\n")
        done = self.sweep("--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["script.no-verb"]))

    def test_a_cell_that_fails_is_one_row_with_its_reason(self):
        self.sweep_script("""over = { plan = {
          { dp(2) }, { dp(2), misbehaving("abort") }, { dp(2), misbehaving("allocate") },
          { dp(2), misbehaving { "hang", call = 3 } }, { dp(2), misbehaving("wrong") } } }, same_loss_as = "dp(2)",""")
        late, = self.cells("--time", "5", "--only", "hang", code=4).values()
        self.assertRegex(late["reason"], r"^over its time limit: not done after 5 s(; its last words: step .*)?$")
        rows = self.cells("--memory", "1536MiB", code=4)
        self.assertEqual(self.states(rows), {name: "done" if name == "dp(2)" else "failed" for name in rows})
        of = {name.split('how = "')[-1].split('"')[0]: row for name, row in rows.items()}
        self.assertEqual(len(of), 5)
        self.assertRegex(of["abort"]["reason"], r"^crashed: SIGABRT \(\w+\)$")  # it said no word of its own
        self.assertRegex(of["allocate"]["reason"], r"^out of memory")
        self.assertEqual((of["hang"]["reason"], of["hang"]["reused"]), (late["reason"], True))
        self.assertRegex(of["wrong"]["reason"], r"^trains differently: the loss of step \d is ")
        self.assertEqual([cell["status"] for cell in self.index()["cells"]], ["done"] + ["failed"] * 4)
        # They are not tried again, unless one asks for it.
        again = self.cells(code=4)
        self.assertTrue(all(row["reused"] for row in again.values()))
        wrong = of["wrong"]["name"]
        retried = self.cells("--retry", "failed", "--only", "wrong", code=4)
        self.assertEqual([(name, row["reused"]) for name, row in retried.items()], [(wrong, False)])
        self.assertEqual(len(list(self.folder.glob("runs/s/.earlier/*"))), 1, "nothing recorded is lost")
        # What is right is for the script to say.
        script = self.folder / "script.lua"
        script.write_text(script.read_text().replace('"dp(2)",', '{ "dp(2)", tolerance = 0.9 },'))
        self.assertEqual(self.cells("--only", "wrong")[wrong]["status"], "done")


class Ended(SweepCase):
    SEEDS = "over = { seed = { 1, 2, 3, 4 } },"

    def start(self, *arguments):
        process = subprocess.Popen([BIN, "sweep", "script.lua", "--plugin-path", TEST_PLUGINS, *arguments],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, what, process):
        for _ in range(3000):
            if what():
                return
            self.assertIsNone(process.poll(), "ended too early")
            time.sleep(0.01)
        self.fail("waited in vain")

    def results(self):
        """Those of cells that have come to their end: one that was interrupted leaves its run's."""
        found = self.folder.glob("runs/s/*/result.json")
        return [path for path in found if json.loads(path.read_text()).get("kind") == "cell"]

    def half_way(self, *arguments):
        """A sweep of which one cell is done and another one runs, for long."""
        self.sweep_script(self.SEEDS, base="observe = function(step) if io.open('slow') then while true do end end end,")
        process = self.start("--workers", "1", *arguments)
        self.wait_for(self.results, process)
        (self.folder / "slow").touch()
        count = lambda: len(list(self.folder.glob("runs/s/*/run.h5")))
        self.wait_for(lambda: count() > len(self.results()), process)
        return process

    def goes_on(self):
        (self.folder / "slow").unlink()
        before = {path: path.stat().st_mtime_ns for path in self.results()}
        rows = self.cells()
        self.assertEqual([row["status"] for row in rows.values()], ["done"] * 4)
        self.assertEqual(sum(row["reused"] for row in rows.values()), len(before))
        self.assertTrue(0 < len(before) < 4)
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in before}, "nothing is done twice")
        self.assertTrue(all(row["reused"] for row in self.cells().values()))

    def test_kill_and_go_on(self):
        process = self.half_way()
        process.kill()
        process.wait()
        self.assertIn("running", [cell["status"] for cell in self.index()["cells"]])
        deadline = time.time() + 300
        while self.processes_of_cells() and time.time() < deadline:
            time.sleep(0.02)
        self.assertEqual(self.processes_of_cells(), [], "no cell outlives its sweep")
        self.goes_on()
        self.assertFalse((self.folder / "runs/s/.earlier").exists(), "what was half done goes once the cell is done")

    def processes_of_cells(self):
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"cell" in words and os.readlink(path / "cwd") == str(self.folder.resolve()):
                    found.append(path.name)
            except OSError:
                pass
        return found

    def test_interrupt_and_go_on(self):
        process = self.half_way()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("the same command goes on from here", said)
        self.assertIn("stopping: cells under way are ended, and run again by the same command", said)
        self.assertNotIn("running", [cell["status"] for cell in self.index()["cells"]])
        self.goes_on()

    def test_shards_and_two_at_once(self):
        self.sweep_script(self.SEEDS)
        processes = [self.start("--shard", shard, "--json") for shard in ("1/2", "2/2")]
        ran = []
        for process in processes:
            out, said = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, said)
            ran.append({row["name"] for row in map(json.loads, out.splitlines())
                        if row["status"] == "done" and not row["reused"]})
        self.assertEqual(ran, [{"seed=1", "seed=3"}, {"seed=2", "seed=4"}])
        self.assertEqual(self.states(self.cells()), {f"seed={n}": "done" for n in range(1, 5)})

        shutil.rmtree(self.folder / "runs")  # the same command twice, at the same time
        processes = [self.start("--json", "--workers", "1") for _ in range(2)]
        ran = []
        for process in processes:
            out, said = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, said)
            rows = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([row["status"] for row in rows], ["done"] * 4)
            ran += [row["name"] for row in rows if not row["reused"]]
        self.assertEqual(sorted(ran), [f"seed={n}" for n in range(1, 5)], "each cell ran once")
        self.assertEqual([cell["status"] for cell in self.index()["cells"]], ["done"] * 4)


class Other(SweepCase):
    def test_cells_with_one_plan_are_predicted_alike(self):
        self.sweep_script("over = { steps = { 2, 3 }, plan = { { dp(2) }, { tp(2) } }, seed = { 1, 2 } },")
        rows = list(self.cells("--predict").values())
        self.assertEqual(len({row["hash"] for row in rows}), 8)
        for row in rows:
            self.assertEqual((row["predicted"]["hash"], row["predicted"]["seed"]), (row["hash"], row["values"]["seed"] == "2" and 2 or 1))
            self.assertEqual(str(row["predicted"]["experiment"]["steps"]), row["values"]["steps"])
        own = ("hash", "hash_without_seed", "seed", "experiment")
        for plan in ("dp(2)", "tp(2)"):
            alike = [{key: value for key, value in row["predicted"].items() if key not in own}
                     for row in rows if row["values"]["plan"] == plan]
            self.assertEqual(alike, alike[:1] * 4)

    def test_predicted_only(self):
        self.sweep_script("""over = { plan = { { dp(8) }, { zero { 8, stage = 3 } }, { tp(3) } },
          ["model.hidden"] = { 16, 32, 64, 128 }, batch = { 8, 16, 24, 32, 40 } },""")
        rows = self.cells("--predict")
        self.assertEqual(len(rows), 60)
        states = [row["status"] for row in rows.values()]
        self.assertEqual((states.count("predicted"), states.count("refused")), (40, 20))
        self.assertEqual(sorted(os.listdir(self.folder / "runs/s")), [".locks", "predicted.jsonl", "sweep.json"])
        self.assertEqual([(cell["status"], cell["folder"]) for cell in self.index()["cells"]
                          if cell["status"] == "predicted"], [("predicted", None)] * 40)
        lines = [json.loads(line) for line in (self.folder / "runs/s/predicted.jsonl").read_text().splitlines()]
        self.assertEqual(lines, list(rows.values()))
        name = "batch=16 model.hidden=32 dp(8)"
        planned = self.folder / "one.lua"
        planned.write_text((self.folder / "script.lua").read_text().split("local sweep")[0] + """
mw.plan { model = mw.llama { layers = 2, hidden = 32, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {},
  sequence = 8, batch = 16, threads = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 2, plan = { dp(8) } }""")
        plan, = self.all("run", planned, "--plugin-path", TEST_PLUGINS)
        self.assertEqual({key: value for key, value in rows[name]["predicted"].items() if key not in ("kind", "kernels")},
                         {key: value for key, value in plan.items() if key not in ("kind", "kernels")})
        # The terminal, JSON, the folder and the page name one mix of each kind of work.
        lines = self.lines(self.sweep("--json", "--predict"))
        verdict = lines[-1]
        self.assertEqual((verdict["kind"], verdict["predicted"], verdict["by"], len(verdict["kinds"])), ("verdict", True, None, 20))
        for kind in verdict["kinds"]:
            speeds = {row["name"]: row["predicted"]["tokens_per_second"] for row in lines[:-1]
                      if row["name"] in kind["mixes"] and row["status"] == "predicted"}
            self.assertEqual(speeds[kind["fastest"]], max(speeds.values()))
            self.assertIn(f"predicted fastest: {kind['fastest']}, ", verdict["answer"])
        self.assertEqual(self.index()["verdict"], verdict)
        table = self.sweep("--predict").stdout
        for line in verdict["answer"].splitlines():
            self.assertIn(f"  {line}\n", table)
        report = self.only("report", "runs/s", "-o", "page.html")
        self.assertEqual([(kind["name"], kind["fastest"]["name"]) for kind in report["kinds"]],
                         [(kind["name"], kind["fastest"]) for kind in verdict["kinds"]])
        # plan SCRIPT predicts too; search says that it does not.
        self.assertEqual(self.sweep(command="plan").returncode, 0)
        done = self.sweep("--json", command="search")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["sweep.verb"]))

    def test_job_script(self):
        self.sweep_script("over = { seed = { 1, 2, 3 }, plan = { { dp(4) } } },")
        done = self.sweep("--print", "sbatch", "--time", "600", "--set", "steps=3", "--only", "seed=*")
        self.assertEqual(done.returncode, 2, "no cell's name begins so")
        done = self.sweep("--print", "sbatch", "--time", "600", "--set", "steps=3", "--only", "seed=")
        self.assertEqual(done.returncode, 0, done.stderr)
        checked = subprocess.run(["bash", "-n"], input=done.stdout, text=True, capture_output=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "#!/bin/bash")
        for line in ("#SBATCH --job-name=s", "#SBATCH --array=1-3", "#SBATCH --cpus-per-task=4", "#SBATCH --time=12"):
            self.assertIn(line, lines)
        self.assertFalse((self.folder / "runs").exists())
        # A job of the array does its share: here the first one, as Slurm would start it.
        script = self.folder / "job.sh"
        script.write_text(done.stdout)
        run = subprocess.run(["bash", script], env={**os.environ, "SLURM_ARRAY_TASK_ID": "2"}, cwd="/",
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([cell["status"] for cell in self.index()["cells"]], ["queued", "done", "queued"])

    def test_shards_that_train_differently(self):
        """Of two shards the last one judges; before, what has nothing beside it says so."""
        self.sweep_script("""over = { mix = { { name = "a", batch = 4 },
          { name = "b", optimizer = mw.adamw { lr = 0.5 } } } }, same_loss_as = "a",""", base="plan = { dp(2) },")
        row = self.cells("--shard", "2/2")["b"]
        self.assertEqual((row["status"], row["same_loss_as"]["compared"]), ("done", False))
        self.assertIn("not compared", row["reason"])
        self.assertEqual(self.cells("--shard", "1/2", code=4)["b"]["status"], "failed")
        self.assertEqual([cell["status"] for cell in self.index()["cells"]], ["done", "failed"])
        # A cell is that by itself too: its run file has an end that was no failure.
        folder = self.index()["cells"][1]["folder"]
        for place in (folder, f"{folder}/run.h5"):
            listed, = self.all("runs", "list", place)
            self.assertEqual(listed["status"], "failed")
            self.assertIn("trains differently", listed["reason"])

    def test_job_script_alone_and_no_report(self):
        self.sweep_script("over = { seed = { 1, 2, 3, 4 } }, skip = function(c) return c.seed % 2 == 0 and 'no' end,",
                          after="print('hello')\n" + GO + "sweep:report('x.html')\n")
        done = self.sweep("--print", "sbatch", "--time", "600")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("#!/bin/bash"))
        self.assertNotIn("hello", done.stdout)
        self.assertIn("#SBATCH --time=22", done.stdout.splitlines())  # one shard of two has both cells
        self.assertEqual(self.sweep("--dry").returncode, 0)
        self.assertFalse((self.folder / "x.html").exists())

    def test_a_script_that_changes_itself(self):
        """A cell's process must come to the same cell."""
        self.sweep_script("over = { seed = { 1 } },", base="batch = io.open('other') and 2 or 4,")
        script = self.folder / "script.lua"
        script.write_text(script.read_text().replace("batch = 4, ", "").replace(
            GO, "if not io.open('other') then io.open('other', 'w'):close() end\n" + GO))
        row, = self.cells(code=4).values()
        self.assertIn("the script makes another experiment", row["reason"])


if __name__ == "__main__":
    unittest.main()
