"""`plan SCRIPT --html` and mw.bar_chart: their pages, read as data and looked at in a browser."""
import json
import unittest

from browser import Browser, require_chromium
from cases import SOURCE, ProgramCase
from test_report import Data

CHART = 'require("meshwright").bar_chart { file = "%s", title = "<b>Tokens</b>", unit = "tokens", ' \
        'series = { "predicted", "run" }, bars = { { "ring", 4096, 2048 }, { "a </script>", 12, 0 } } }'

# Clicks each chart's buttons, and lists the files that would be saved: the name of each, its type,
# its width, the colour of a corner, the page's background colour, and the texts of an SVG.
SAVED = """(async () => {
  const links = [], click = HTMLAnchorElement.prototype.click;
  HTMLAnchorElement.prototype.click = function () { links.push([this.download, this.href]); };
  document.querySelectorAll(".chart .save button").forEach((button) => button.click());
  HTMLAnchorElement.prototype.click = click;
  const ground = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).join();
  return Promise.all(links.map(async ([name, href]) => {
    const image = new Image(); image.src = href; await image.decode();
    const canvas = document.createElement("canvas"); canvas.width = canvas.height = 2;
    const context = canvas.getContext("2d"); context.drawImage(image, 0, 0);
    const texts = href.startsWith("data:image/svg") ? [...new DOMParser().parseFromString(decodeURIComponent(href.slice(href.indexOf(",") + 1)), "image/svg+xml").querySelectorAll("text")] : [];
    return [name, href.split(/[;,]/)[0], image.width, [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)].join(), ground, texts.map((text) => text.textContent)];
  }));
})()"""

# An MoE model whose stages run pairs of works.
PAIRS = """
local mw = require "meshwright"
local dp, ep, pp = mw.plugins("dp", "ep", "pp")
mw.plan {
  model = mw.moe { layers = 4, hidden = 64, heads = 4, kv_heads = 4, ffn = 64, vocab = 64, experts = 4, top_k = 2 },
  data = mw.synthetic {}, sequence = 16, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 1,
  plan = { pp { 2, schedule = { kind = "1f1b", pair = true } }, dp(2), ep(2) },
  cluster = mw.cluster("dgx-h100", { nodes = 1 }),
}
"""

# Lists the drawn timelines: the name of each, and its bars as [row, start, end, label].
DRAWN = """page.charts.filter((entry) => /^(Timeline|Works)/.test(entry.name)).map((entry) => [entry.name,
  entry.chart.data.datasets.flatMap((set) => set.data.map((bar) => [bar.y, ...bar.x, bar.label]))])"""

# The parameters that the page shows of one stage of the first plan.
HELD = """(() => {
  const section = document.querySelector("section[id^=holds]"), select = section.querySelector("select");
  select.selectedIndex = %d; select.dispatchEvent(new Event("change"));
  return section.querySelector("table").textContent;
})()"""


# Lists the words on a page that a line break splits: their letters stand at several heights.
BROKEN = """(() => {
  const broken = [], range = document.createRange();
  const walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      range.setStart(node, index); range.setEnd(node, index + word.length);
      const lines = new Set([...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top)));
      if (lines.size > 1) broken.push(word);
    }
  }
  return broken;
})()"""


def unpacked(line):
    """The bars of a timeline: row, kind, label, start, end."""
    bars = []
    for row, packed in enumerate(line["packed"]):
        at = 0
        for kind, which, gap, length in zip(*[iter(packed)] * 4):
            start, at = at + gap, at + gap + length
            label = line["kinds"][kind] + str(which & 0xffff) if len(line["kinds"][kind]) == 1 and which >= 0 else ""
            bars.append([row, kind, label, start * line["unit"], at * line["unit"]])
    return bars


class PlanPage(ProgramCase):
    def page(self, plan, more=""):
        result = self.only("plan", self.script(plan, more), "--html", "plan.html")
        self.path = self.folder / "plan.html"
        data = Data(self.path.read_text()).data
        return result, data

    def test_what_a_plan_says(self):
        result, data = self.page('pp { 2, schedule = "zb-h1" }, dp(2), tp(2)')
        plan, = data["plans"]
        self.assertEqual(plan["mesh"]["size"], 8)
        self.assertEqual([a["name"] for a in plan["mesh"]["axes"]], ["pp", "dp", "tp"])
        self.assertEqual([r["at"] for r in plan["mesh"]["ranks"]],
                         [[p, d, t] for p in range(2) for d in range(2) for t in range(2)])
        self.assertEqual([r["stage"] for r in plan["mesh"]["ranks"]], [0] * 4 + [1] * 4)
        # Memory over time reaches the peak that plan predicts, and never exceeds it.
        for stage, memory in zip(result["memory"], plan["memory"]):
            self.assertEqual(memory["peak"], stage["peak"])
            lasting = sum(memory["lasting"].values())
            highest = max(p[2] + p[3] for p in memory["points"])
            self.assertEqual(lasting + highest, stage["peak"])
            self.assertTrue(all(a[1] <= b[0] + 1e-3 for a, b in zip(memory["points"], memory["points"][1:])))
            at = [p for p in memory["points"] if p[0] <= memory["peak_at"] <= p[1]]
            self.assertIn(highest, [p[2] + p[3] for p in at])
        self.assertEqual([[c["axis"], c["op"], c["phase"], c["calls"], c["bytes"]] for c in plan["communication"]],
                         [[c["axis"], c["op"], c["phase"], c["calls"], c["bytes"]] for c in result["communication"]])
        self.assertAlmostEqual(plan["step"]["ms"], 1e3 * result["step_seconds"], delta=1e-4 * plan["step"]["ms"])
        bars = unpacked(plan["timeline"])
        self.assertEqual(sum(bar[2].startswith("F") for bar in bars), 2 * 2)  # microbatches by stages
        self.assertAlmostEqual(max(bar[4] for bar in bars) / plan["step"]["ms"], 1, places=3)
        q = [row for stage in plan["placements"] for row in stage["rows"] if ".q" in row["name"]]
        self.assertEqual([row["shapes"] for row in q], [["2 x 8 x 32"]] * 2)
        self.assertIn({"dim": "batch", "axis": "dp", "by": "dp", "where": "all ops that have it"}, plan["rules"])

    def test_looked_at(self):
        require_chromium()
        more = "mw.plan(e)\ne.plan = { dp(2), tp(2) }"
        done = self.all("plan", self.script('pp { 2, schedule = "zb-h1" }, dp(2)', more), "--html", "plan.html")
        self.assertEqual(len(done), 2)
        page = self.folder / "plan.html"
        self.assertLess(page.stat().st_size, 3_000_000)
        with Browser() as browser:
            for width, dark in ((1280, False), (390, True)):
                with self.subTest(width=width):
                    browser.open(page, width, dark=dark)
                    self.assertEqual(browser.complaints(), [])
                    self.assertEqual(browser.requested(), [page.as_uri()])
                    self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), width)
                    # Who holds what is shown of one stage at a time.
                    held = [browser.value(HELD % stage) for stage in (0, 1)]
                    self.assertIn("embedding", held[0])
                    self.assertNotIn("embedding", held[1])
                    for charts in (3, 3):
                        self.assertEqual(browser.value("document.body.dataset.drawn"), str(charts))
                        self.assertEqual(browser.value("document.querySelectorAll('.rank').length"), 4)
                        browser.value("{ const s = document.querySelector('select'); s.selectedIndex = 1; "
                                      "s.dispatchEvent(new Event('change')); }")
                    self.assertIn("{ dp(2), tp(2) }", browser.value("document.querySelector('.headline').textContent"))
                    # Each chart can be saved: a click makes a PNG of the canvas' size, on the
                    # page's ground.
                    saved = browser.value(SAVED)
                    self.assertEqual(len({name for name, *_ in saved}), 2 * 3)
                    for name, kind, wide, corner, ground, texts in saved:
                        self.assertRegex(name, r"^[a-z0-9-]+\.(png|svg)$")
                        self.assertEqual((kind, corner), ("data:image/svg+xml" if name.endswith(".svg") else "data:image/png", ground))
                        self.assertGreater(wide, 300)
                        self.assertEqual(any("(ms)" in text or "(µs)" in text for text in texts), name.endswith(".svg"), texts)
                    # The numbers can be saved too.
                    csv = browser.value("(() => { const details = [...document.querySelectorAll('details.numbers')].find((d) => /each work/.test(d.textContent)); "
                                        "details.open = true; details.fill(); let href = ''; const click = HTMLAnchorElement.prototype.click; "
                                        "HTMLAnchorElement.prototype.click = function () { href = this.href; }; details.querySelector('.csv').click(); "
                                        "HTMLAnchorElement.prototype.click = click; return decodeURIComponent(href.slice(href.indexOf(',') + 1)); })()")
                    self.assertTrue(csv.startswith("row,work,chunk,start (ms),end (ms),takes (ms)\n"), csv[:80])
                    self.assertGreater(csv.count("\n"), 4)

    def test_how_much_of_a_peak_is_an_estimate(self):
        """The page says so from a hundredth of the peak on. Here the number is put into the page's data."""
        require_chromium()
        _, data = self.page('pp { 2, schedule = "1f1b" }')
        peak = data["plans"][0]["memory"][0]["peak"]
        text = self.path.read_text()
        self.assertIn('"estimated":0', text)
        noted = "[...document.querySelectorAll('.note, p')].map((e) => e.textContent).filter((t) => t.includes('are an estimate'))"
        with Browser() as browser:
            for estimated, said in ((peak // 200, 0), (peak // 2, 1)):
                self.path.write_text(text.replace('"estimated":0', f'"estimated":{estimated}'))
                browser.open(self.path, 1280)
                self.assertEqual(browser.complaints(), [])
                notes = browser.value(noted)
                self.assertEqual(len(notes), said, notes)
            self.assertRegex(notes[0], r"^Of the peak, [\d.]+ [KM]iB are an estimate: ")

    def test_works_that_share_a_stage(self):
        """Works of a group stand in rows of their own; memory is that of the text, with what libraries keep."""
        result, = self.all("plan", self.write(PAIRS), "--html", "plan.html", "--braids")
        plan, = Data((self.folder / "plan.html").read_text()).data["plans"]
        self.assertEqual([m["peak"] for m in plan["memory"]], [stage["peak"] for stage in result["memory"]])
        self.assertRegex(dict(plan["facts"])["model"], r"moe, [\d.]+ k parameters")
        self.assertEqual([b["name"] for b in plan["braids"]], [b["name"] for b in result["braids"]])
        for braid in plan["braids"]:
            self.assertEqual(braid["line"]["rows"][:2], braid["name"].split("+"))
            self.assertIn("ep", braid["line"]["rows"][2:])
            self.assertIn("one after the other", braid["words"])
        require_chromium()
        with Browser() as browser:
            for width in (1280, 390):
                browser.open(self.folder / "plan.html", width)
                self.assertEqual(browser.complaints(), [])
                self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), width)
                browser.value("{ const braids = document.querySelector('details.braids'); braids.open = true; braids.fill(); }")
                drawn = browser.value(DRAWN)
                self.assertEqual([name.split()[0] for name, _ in drawn], ["Timeline", "Works"])
                for name, bars in drawn:
                    rows = {}
                    for row, *bar in sorted(bars):
                        rows.setdefault(row, []).append(bar)
                    self.assertGreater(len(rows), 2, name)
                    for row in rows.values():
                        self.assertTrue(all(a[1] <= b[0] + 1e-9 for a, b in zip(row, row[1:])), (name, row))
                self.assertEqual({bar[3][0] for bar in drawn[0][1] if bar[3]}, {"F", "B"})
            self.assertEqual(browser.value("document.querySelectorAll('details.braids .save button').length"), 2)
            self.assertEqual(browser.value("document.querySelectorAll('details.braids details.numbers').length"), 1)

    def test_a_page_of_2048_devices(self):
        require_chromium()
        script = SOURCE / "scripts/published/deepseek-v3.lua"
        done = self.call("plan", script, "--html", "plan.html")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        page = self.folder / "plan.html"
        self.assertLess(page.stat().st_size, 3_000_000)
        line = Data(page.read_text()).data["plans"][0]["timeline"]
        self.assertEqual(len(line["rows"]), 16)
        self.assertNotIn("left_out", line)
        bars = unpacked(line)
        self.assertEqual({row for row, *_ in bars}, set(range(16)))
        with Browser() as browser:
            browser.open(page, 1280)
            self.assertLessEqual(browser.value("document.documentElement.scrollHeight"), 3 * 900)
            # Each stage is drawn when it is asked for.
            drawn = browser.value("""(() => {
              const section = document.querySelector("section[id^=timeline]"), select = section.querySelector("select"), drawn = [];
              for (let i = 0; i < select.options.length; i += 1) {
                select.selectedIndex = i; select.dispatchEvent(new Event("change"));
                const { chart } = page.charts.find((entry) => section.contains(entry.box));
                drawn.push(chart.data.datasets.reduce((sum, set) => sum + set.data.length, 0));
              }
              return drawn;
            })()""")
            self.assertEqual(sum(drawn), len(bars))
            browser.open(page, 390)
            self.assertEqual(browser.value(BROKEN), [])
            self.assertLessEqual(browser.value("document.documentElement.scrollWidth"), 390)
            self.assertEqual(browser.complaints(), [])

    def test_one_rank_and_refusals(self):
        _, data = self.page("")
        self.assertEqual(data["plans"][0]["communication"], [])
        (self.folder / "mine.html").write_text("mine")
        self.refused(2, "page.foreign", "plan", "script.lua", "--html", "mine.html")

    def test_bars(self):
        require_chromium()
        self.assertEqual(self.call("run", self.write(CHART % "new/chart.html")).returncode, 0)
        path = self.folder / "new/chart.html"
        data = Data(path.read_text()).data
        self.assertEqual(data["bars"], [["ring", 4096, 2048], ["a </script>", 12, 0]])
        with Browser() as browser:
            browser.open(path, 390)
            self.assertEqual(browser.complaints(), [])
            self.assertEqual(browser.value("document.body.dataset.drawn"), "1")
            self.assertEqual(browser.value("document.querySelector('h1').textContent"), "<b>Tokens</b>")
            browser.value("document.querySelector('details').open = true; document.querySelector('details').fill()")
            self.assertEqual(browser.value("document.querySelector('table').dataset.rows"), "2")
        for text in (CHART % "chart.svg", CHART.replace("4096", "-1") % "c.html", CHART.replace('unit = "tokens"', "unit = 1") % "c.html"):
            problem = self.refused(2, "script.argument", "run", self.write(text))
            self.assertIn("mw.bar_chart", json.dumps(problem))


if __name__ == "__main__":
    unittest.main(verbosity=2)
