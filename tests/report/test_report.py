"""`meshwright report`: the page of a sweep and of runs, read as data and looked at in a browser."""
import html.parser
import json
import os
import re
import shutil
import statistics
import tempfile
import unittest

import h5py
import numpy as np

import loaded
from browser import Browser, require_chromium
from cases import BIN, ProgramCase

EVIL = '</script><b class="evil">x</b> "q" \'a\' \u2028 <!-- {{data}} & ümläut 🙂'
RUNS = """\
local mw = require "meshwright"
local dp, tp, pp = mw.plugins("dp", "tp", "pp")
local mixes = { dp = { dp(2) }, tp = { tp(2) }, pp = { pp { 2, schedule = "zb-h1" } } }
for _, name in ipairs { "dp", "tp", "pp" } do
  for _, recompute in ipairs { "none", "full" } do
    for seed = 0, name == "pp" and 0 or 1 do
      mw.train {
        model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, sequence = 8,
        data = mw.synthetic {}, plan = mixes[name], batch = 4, microbatch = 2, recompute = recompute, seed = seed,
        optimizer = mw.adamw { lr = 1e-2 }, steps = 6,
        log = ("sweep/%s-%s-%d/run.h5"):format(name, recompute, seed),
        observe = function(step, facts) if step % 2 == 1 then return { held_out_loss = 2 * facts.loss } end end,
      }
    end
  end
end
"""


TRACED = """\
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
mw.train { model = mw.llama { layers = 2, hidden = 32, heads = 2, ffn = 64, vocab = 32 }, sequence = 16, data = mw.synthetic {},
  plan = { pp(2), dp(2) }, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 5, trace = { 3 }, threads = 1,
  account = true, log = "traced.h5" }
"""


class Data(html.parser.HTMLParser):
    """The JSON of a page, and which elements it has."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.text = [], False, ""
        self.feed(text)
        self.data = json.loads(self.text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id") == "data"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.text += data


class Report(ProgramCase):
    @classmethod
    def setUpClass(cls):
        # Real runs, made once; a sweep's list around them by hand.
        cls.home = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.home.cleanup)
        folder = cls.home.name
        with open(f"{folder}/runs.lua", "w") as script:
            script.write(RUNS)
        done = loaded.run([BIN, "run", "runs.lua", "--json"], cwd=folder, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        cells = []
        for name in ("dp", "tp", "pp"):
            for recompute in ("none", "full"):
                for seed in range(1 if name == "pp" else 2):
                    cells.append(dict(id=f"{name}-{recompute}-{seed}", name=f"{name}, {recompute} seed={seed}",
                                      values=dict(plan=name, recompute=recompute, seed=str(seed)), status="done",
                                      reason=None, folder=f"{name}-{recompute}-{seed}", seconds=1.5))
        cells[5].update(status="failed", reason="trains differently: " + EVIL)  # tp, none, seed 1
        cells.append(dict(id="ep", name="ep, none seed=0", values=dict(plan="ep", recompute="none", seed="0"),
                          status="skipped", reason="no experts " + "y" * (10 << 20), folder=None, seconds=None))
        sweep = dict(schema="meshwright.sweep/1", name="Mixes <i>of</i> " + EVIL, script="mixes.lua",
                     created="2026-01-01T00:00:00Z", baseline="dp", same_loss_as="dp",
                     axes=[dict(key="plan", values=["dp", "tp", "pp", "ep"]), dict(key="recompute", values=["none", "full"]),
                           dict(key="seed", values=["0", "1"])], cells=cells)
        with open(f"{folder}/sweep/sweep.json", "w") as file:
            json.dump(sweep, file)
        for c in cells[:-1]:
            with open(f"{folder}/sweep/{c['folder']}/machine.json", "w") as file:
                json.dump({"host": "here", "memory": 25276510208, "versions": {"torch": "2.15.0"},
                           "plugins": {c["values"]["plan"]: "1.0.0"}}, file)
            compared = {} if c["id"] in ("pp-full-0",) or c["id"].startswith("dp") else {"compared": True}
            with open(f"{folder}/sweep/{c['folder']}/result.json", "w") as file:
                json.dump({"kind": "cell", "beside": 2, "same_loss_as": compared}, file)

    def setUp(self):
        super().setUp()
        self.sweep = os.path.join(self.home.name, "sweep")

    def page(self, *arguments, name="report.html"):
        self.summary = self.only("report", *arguments, "-o", name)
        self.path = self.folder / name
        return Data(self.path.read_text()).data

    def test_a_sweeps_numbers(self):
        data = self.page(self.sweep)
        self.assertEqual(data["counts"], {"done": 9, "failed": 1, "skipped": 1})
        self.assertEqual((data["all_cells"], len(data["cells"])), (11, 11))
        self.assertEqual((data["axes"], data["checked"]), (["plan", "recompute"], True))
        groups = {g["name"]: g for g in data["groups"]}
        self.assertEqual(set(groups), {"dp, none", "dp, full", "tp, none", "tp, full", "pp, none", "pp, full", "ep, none"})
        # The tokens of a run's median step after the warm-up, then mean and deviation over seeds.
        for plan, recompute, seeds in (("dp", "none", 2), ("tp", "full", 2), ("pp", "none", 1)):
            rates, peaks, losses = [], [], []
            for seed in range(seeds):
                with h5py.File(f"{self.sweep}/{plan}-{recompute}-{seed}/run.h5", locking=False) as f:
                    result = json.loads(f["result"][()])
                    self.assertAlmostEqual(result["tokens_per_second"] * result["step_seconds"], f["steps"]["tokens"][-1])
                    rates.append(result["tokens_per_second"])
                    peaks.append(int(f["rank_memory"]["peak_bytes"].max()))
                    losses.append(float(f["steps"]["loss"][-1]))
            measures = groups[f"{plan}, {recompute}"]["m"]
            mean, deviation, n = measures["tokens"]
            self.assertEqual(n, seeds)
            self.assertAlmostEqual(mean / statistics.mean(rates), 1, places=4)
            if seeds > 1:
                self.assertAlmostEqual(deviation / statistics.stdev(rates), 1, places=4)
            else:
                self.assertIsNone(deviation)
                self.assertAlmostEqual(measures["loss"][0] / losses[0], 1, places=4)
            self.assertEqual(measures["peak"][0], statistics.mean(peaks))
            self.assertAlmostEqual(measures["held_out"][0], 2 * statistics.mean(losses), places=4)
        self.assertEqual(groups["tp, none"]["verdict"], "failed")
        self.assertEqual(groups["ep, none"]["verdict"], "left out")
        self.assertEqual(groups["pp, full"]["verdict"], "not compared")
        self.assertTrue(any(n.startswith("Up to 3 cells ran side by side") for n in data["notes"]), data["notes"])
        change = groups["pp, full"]["m"]["tokens"][0] / groups["dp, full"]["m"]["tokens"][0] - 1
        self.assertAlmostEqual(groups["pp, full"]["delta"], change, places=4)
        right = [g for g in data["groups"] if g["verdict"] == "right"]
        fastest = max(right, key=lambda g: g["m"]["tokens"][0])
        if data["fastest"] < 0:  # so few steps may tell no mix from the others
            self.assertTrue(data["headline"].startswith(("Undecided: ", "Cannot be: ")), data["headline"])
            self.assertIn(fastest["name"], self.summary["undecided"])
            self.assertTrue(fastest["contends"])
        else:
            self.assertEqual(data["groups"][data["fastest"]], fastest)
            self.assertIn(f"Fastest correct mix: {fastest['name']}, ", data["headline"])
            self.assertEqual(self.summary["fastest"]["name"], fastest["name"])
            self.assertEqual(self.summary["undecided"], [])
        self.assertTrue(all(0 <= g["half"] < 1 for g in right if g["half"] is not None))
        # Bytes and memory are predicted to the byte, so the page has them equal.
        for name in ("dp, none", "pp, full"):
            self.assertEqual(groups[name]["bytes"], groups[name]["p_bytes"])
        self.assertEqual(len(data["timelines"]), 6)
        # One machine, whatever plugins the mixes use.
        self.assertEqual([m["cells"] for m in data["machines"]], [10])
        self.assertEqual(data["machines"][0]["facts"], [
            ["host", "here"], ["memory", "23.5 GiB"], ["versions.torch", "2.15.0"], ["plugins.dp", "1.0.0"],
            ["plugins.pp", "1.0.0"], ["plugins.tp", "1.0.0"]])

    def test_texts_stay_texts(self):
        data = self.page(self.sweep)
        page = Data(self.path.read_text())
        self.assertFalse([t for t in page.tags if t[1].get("class") == "evil"])
        self.assertEqual(sum(tag == "script" for tag, _ in page.tags), 3)
        self.assertIn(EVIL, data["title"] + "".join(c.get("reason", "") for c in data["cells"]))
        long = next(c["reason"] for c in data["cells"] if c["status"] == "skipped")
        self.assertRegex(long, r"^no experts y+ … \(10485771 characters\)$")
        self.assertLess(self.path.stat().st_size, 3_000_000)

    def test_looked_at(self):
        require_chromium()
        data = self.page(self.sweep)
        with Browser() as browser:
            for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
                with self.subTest(width=width, dark=dark):
                    browser.open(self.path, width, 900, dark)
                    self.look(browser, data, width, dark)
            browser.open(self.path, 1280)
            self.use(browser, data)
        self.assertEqual(browser.logged - {self.path.as_uri()}, set())

    def test_a_request_would_be_found(self):
        require_chromium()
        page = self.folder / "asks.html"
        page.write_text('<body data-ready="yes"><img src="http://localhost:9/a.png"><script src="missing.js"></script>')
        with Browser() as browser:
            browser.open(page)
            self.assertIn("http://localhost:9/a.png", browser.requested())
            self.assertTrue(browser.complaints())
        self.assertIn("http://localhost:9/a.png", browser.logged)

    def look(self, browser, data, width, dark):
        value = browser.value
        self.assertEqual(browser.complaints(), [])
        self.assertEqual(browser.requested(), [self.path.as_uri()])
        # Every chart has drawn: none is blank.
        self.assertEqual(value("document.body.dataset.charts"), value("document.body.dataset.drawn"))
        self.assertGreaterEqual(value("page.charts.length"), 7)
        blank = value("page.charts.filter(({ canvas }) => { const d = canvas.getContext('2d').getImageData(0, 0, "
                      "canvas.width, canvas.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; "
                      "return n < 500; }).map(({ name }) => name).join()")
        self.assertEqual(blank, "")
        # No sideways scrolling of the page; what is wider scrolls in its own box.
        self.assertLessEqual(value("document.documentElement.scrollWidth"), width)
        self.assertEqual(value("document.documentElement.dataset.theme"), "dark" if dark else "light")
        brightness = value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + Number(b), 0)")
        self.assertEqual(brightness < 200, dark)
        self.assertEqual(value("document.querySelectorAll('b.evil, i').length"), 0)
        self.assertEqual(value("document.title"), data["title"])
        self.assertEqual(value("document.querySelector('.headline').textContent"), data["headline"])
        rows = "document.querySelector('#{} > .table tbody').children.length"
        self.assertEqual(value(rows.format("mixes")), len(data["groups"]))
        self.assertEqual(value(rows.format("not-done")), 2)
        self.assertEqual(value("[...document.querySelectorAll('canvas')].filter((c) => !c.getAttribute('aria-label')).length"), 0)

    def use(self, browser, data):
        """What a reader does: sorts, searches, opens numbers, switches theme, prints."""
        value = browser.value
        first = "document.querySelector('#mixes > .table tbody tr td').textContent"
        head = "[...document.querySelectorAll('#mixes > .table th')].find((th) => th.textContent === 'tokens/s')"
        self.assertEqual(value(head + ".getAttribute('aria-sort')"), "descending")
        value(head + ".firstChild.click()")
        self.assertEqual(value(head + ".getAttribute('aria-sort')"), "ascending")
        known = [g for g in data["groups"] if "tokens" in g["m"]]
        slowest = min(known, key=lambda g: g["m"]["tokens"][0])
        self.assertTrue(value(first).startswith(slowest["values"]["plan"]))
        value("document.querySelectorAll('details').forEach((d) => { d.open = true; d.fill(); })")
        points = sum(len(curve["steps"]) for curve in data["losses"])
        self.assertEqual(value("document.querySelector('#loss details table').dataset.rows"), str(points))
        value("document.getElementById('theme').click()")
        self.assertEqual(value("document.documentElement.dataset.theme"), "dark")
        value("document.querySelector('#timeline select').selectedIndex = 1; "
              "document.querySelector('#timeline select').dispatchEvent(new Event('change'))")
        self.assertEqual(value("document.querySelectorAll('#timeline canvas').length"), 1)
        self.assertEqual(value("document.body.dataset.charts"), value("document.body.dataset.drawn"))
        self.assertGreater(len(browser.call("Page.printToPDF")["data"]), 10000)
        self.assertEqual(browser.complaints(), [])

    def small_copy(self, run, name):
        """What a page needs of a run, without the room that its tables have for more rows."""
        with h5py.File(run, locking=False) as file, h5py.File(self.folder / name, "w") as small:
            small.attrs.update(file.attrs)
            for text in ("experiment", "plan", "predicted", "result"):
                file.copy(text, small)
            for table in ("steps", "rank_memory", "memory", "communication", "actions"):
                small[table] = file[table][()]

    def test_a_thousand_cells(self):
        require_chromium()
        cells = []
        for plan in ("dp", "tp", "pp"):
            self.small_copy(f"{self.sweep}/{plan}-none-0/run.h5", f"{plan}.h5")
        for i in range(1000):
            plan = ("dp", "tp", "pp")[i % 3]
            (self.folder / f"big/{i}").mkdir(parents=True)
            run = shutil.copy(self.folder / f"{plan}.h5", self.folder / f"big/{i}/run.h5")
            with h5py.File(run, "r+", locking=False) as file:
                file.attrs["hash_without_seed"] = np.bytes_(str(i))  # cells of one experiment would be repeats
            cells.append(dict(id=str(i), name=f"{plan} {i // 3}", status="done", reason=None, folder=str(i), seconds=1,
                              values=dict(plan=f"{plan}({i % 60})", lr=str(i // 60))))
        (self.folder / "big/sweep.json").write_text(json.dumps(dict(name="big", cells=cells, axes=[])))
        data = self.page("big")
        self.assertEqual((len(data["cells"]), len(data["groups"])), (1000, 1000))
        self.assertLess(self.path.stat().st_size, 3_000_000)
        self.assertTrue(any("timelines" in note.lower() for note in data["notes"]), data["notes"])
        with Browser() as browser:
            browser.open(self.path, 390)
            self.assertEqual(browser.complaints(), [])
            # Tables and charts hold back; the page says so.
            self.assertLess(browser.value("document.querySelectorAll('tr').length"), 400)
            self.assertIn("30 fastest of 1000", browser.value("document.getElementById('memory').textContent"))
            self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), 390)
            browser.value("const s = document.querySelector('#cells input'); s.value = 'tp 7'; s.dispatchEvent(new Event('input'))")
            browser.value("new Promise((done) => setTimeout(done, 400))")
            found = sum("tp" in c["name"] and "7" in json.dumps([c["name"], c["file"]]) for c in data["cells"])
            self.assertIn(" found in 1000 rows", browser.value("document.querySelector('#cells .controls').textContent"))
            self.assertGreater(found, 0)

    def test_more_than_fits(self):
        cells = [dict(id=str(i), name=f"cell {i}", status="failed", folder=None, values=dict(plan=f"dp({i})"),
                      reason="why? " * 1000) for i in range(3000)]
        (self.folder / "big").mkdir()
        (self.folder / "big/sweep.json").write_text(json.dumps(dict(name="big", cells=cells, axes=[])))
        data = self.page("big")
        self.assertLess(self.path.stat().st_size, 3_000_000)
        self.assertEqual((data["all_cells"], data["counts"], data["fastest"]), (3000, {"failed": 3000}, -1))
        self.assertGreater(len(data["cells"]), 500)
        self.assertTrue(any(re.search(r"\d+ of 3000 cells", note) for note in data["notes"]), data["notes"])
        self.assertIsNone(self.summary["fastest"])

    def test_runs_by_themselves(self):
        one, two = f"{self.sweep}/dp-none-0/run.h5", f"{self.sweep}/tp-none-0"
        data = self.page(one, two, "--baseline", "tp(2)", "--title", "Two")
        self.assertEqual((data["title"], len(data["groups"]), data["checked"]), ("Two", 2, False))
        self.assertIn("delta", next(g for g in data["groups"] if "baseline" in g))
        self.assertIn("No losses were compared", data["headline"])
        data = self.page(one)
        self.assertEqual(data["counts"], {"done": 1})

    def drawn_as(self, drawn, parts):
        """A chart's values are these seconds in one unit, which the page chooses by the step: a machine may take less than
        a millisecond. Returns how many of the unit are a second."""
        unit = min((1, 1e3, 1e6), key=lambda unit: abs(sum(value or 0 for label, value in drawn) / unit - sum(parts.values())))
        for label, value in drawn:
            self.assertAlmostEqual(value or 0, unit * parts.get(label, 0), delta=1e-4 * unit / 1e3)
        return unit

    def test_the_breakdown_of_a_traced_step(self):
        require_chromium()
        self.assertEqual(self.call("run", self.write(TRACED)).returncode, 0)
        data = self.page("traced.h5")
        [group] = data["groups"]
        for parts in (group["parts"], group["p_parts"]):
            self.assertGreater(parts["compute"], 0)
            self.assertGreater(parts["bubble"], 0)  # there are two stages
        with h5py.File(self.folder / "traced.h5") as file:
            took = file["steps"][:]["seconds"][3]
            trace = file["trace"][:]
        self.assertGreater(sum(group["parts"].values()), 0.98 * took)
        self.assertLess(sum(group["parts"].values()), 1.02 * max(took, float(trace["end"].max() - trace["start"].min())))
        with Browser() as browser:
            browser.open(self.folder / "report.html", 1280)
            self.assertEqual(browser.complaints(), [])
            drawn = browser.value("""(() => {
              const { chart } = page.charts.find((entry) => entry.name === "Breakdown of a step");
              return [chart.data.labels, chart.data.datasets.map((set) => [set.label, set.data[0]])];
            })()""")
            self.assertEqual(drawn[0], [f"{group['name']}, measured", f"{group['name']}, predicted"])
            self.drawn_as(drawn[1], group["parts"])
            labels, account = browser.value("""(() => {
              const { chart } = page.charts.find((entry) => entry.name === "Account of a step");
              return [chart.data.labels, chart.data.datasets.map((set) => [set.label, ...set.data])];
            })()""")
        self.assertEqual(labels, [group["name"], f"{group['name']}, limit"])
        unit = self.drawn_as([(label, measured) for label, measured, limit in account], group["account"])
        for label, measured, limit in account:
            self.assertAlmostEqual(limit or 0, unit * group["limit"].get(label, 0), delta=1e-4 * unit / 1e3)
        self.assertGreater(group["limit"]["products"], 0)
        self.assertLessEqual({"products", "memory-bound ops", "waits for other ranks", "the engine"}, set(group["account"]))

    def test_whiskers_are_the_intervals_of_the_table(self):
        require_chromium()
        data = self.page(self.sweep)
        with Browser() as browser:
            browser.open(self.folder / "report.html", 1280)
            # Intervals of the test itself, as measured ones change; null: too wide to be a number.
            browser.value("data.groups.forEach((g, i) => { g.half = i === 0 ? null : 0.05 * i; })")
            known = [0.05 * i for i, g in enumerate(data["groups"]) if i > 0 and "tokens" in g["m"] and "peak" in g["m"]]
            # The ends of the lines that the chart draws, as numbers of its axis.
            ends = browser.value("""(() => {
              const { chart } = page.charts.find((entry) => entry.name === "Speed against memory"), ctx = chart.ctx;
              const ends = [], { moveTo, lineTo } = ctx;
              ctx.moveTo = (x, y) => { ends.push([chart.scales.y.getValueForPixel(y)]); };
              ctx.lineTo = (x, y) => { ends[ends.length - 1].push(chart.scales.y.getValueForPixel(y)); };
              chart.config.plugins.find((one) => one.id === "whiskers").beforeDatasetsDraw(chart);
              delete ctx.moveTo; delete ctx.lineTo;
              return ends;
            })()""")
        drawn = sorted(high / low for low, high in ends)
        wanted = sorted((1 + half) / (1 - half) for half in known)
        self.assertEqual(len(drawn), len(wanted))
        for one, other in zip(drawn, wanted):
            self.assertAlmostEqual(one / other, 1, places=3)

    def test_a_predicted_sweep(self):
        row = dict(kind="cell", sweep="guess", status="predicted", reason=None, folder=None)
        rows = [dict(row, name=name, hash=name, values=dict(plan=name), predicted=dict(
            step_seconds=1 / speed, tokens_per_second=speed, ranks=2, fits=fits, experiment=dict(batch=4), hash_without_seed=name,
            memory=[dict(stage=0, peak=100)], communication=[dict(axis="dp", bytes=24)]))
            for name, speed, fits in (("a", 100.0, True), ("b", 200.0, True), ("c", 300.0, False))]
        cells = [dict(id=r["hash"], name=r["name"], values=r["values"], status="predicted", folder=None) for r in rows]
        (self.folder / "guess").mkdir()
        (self.folder / "guess/predicted.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        for listed in (False, True):
            if listed:
                (self.folder / "guess/sweep.json").write_text(json.dumps(dict(name="guess", axes=[], cells=cells)))
            data = self.page("guess")
            self.assertIn("Predicted fastest: b, 200 tokens/s", data["headline"])
            self.assertEqual(data["groups"][0]["m"]["p_peak"][0], 100)
            self.assertEqual(data["groups"][0]["p_bytes"], {"dp": 24})

    def test_refusals_and_files(self):
        run = f"{self.sweep}/dp-none-0/run.h5"
        (self.folder / "letter.html").write_text("<p>Dear</p>")
        (self.folder / "text.h5").write_text("no")
        for code, arguments in (
                ("usage.missing", (run,)),
                ("file.missing", ("none.h5", "-o", "r.html")),
                ("runs.unreadable", ("text.h5", "-o", "r.html")),
                ("page.foreign", (run, "-o", "letter.html")),
                ("file.write", (run, "-o", ".")),
                ("file.write", (run, "-o", "text.h5/r.html")),
                ("usage.value", (run, "-o", "r.html", "--baseline", "ddp"))):
            with self.subTest(arguments=arguments):
                self.refused(2, code, "report", *arguments)
        self.assertEqual((self.folder / "letter.html").read_text(), "<p>Dear</p>")
        self.assertFalse((self.folder / "r.html").exists())
        # A page replaces a page, through a link too, and leaves nothing beside it.
        self.page(run, name="new/er/page.html")
        (self.folder / "link.html").symlink_to("new/er/page.html")
        self.page(run, "--title", "again", name="link.html")
        self.assertTrue((self.folder / "link.html").is_symlink())
        self.assertIn("again", (self.folder / "new/er/page.html").read_text())
        self.assertEqual(os.listdir(self.folder / "new/er"), ["page.html"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
