"""`meshwright report --figures`: figures and tables for papers, of a sweep, plans and a search."""
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

import h5py
import numpy as np
from matplotlib.text import Text

import loaded
from cases import BIN, SOURCE, ProgramCase
from problems import problems

sys.path.insert(0, str(SOURCE / "python/src"))
from meshwright_figures.drawing import Drawing  # noqa: E402
from meshwright_figures.figures import figures_of  # noqa: E402

SWEEP = """\
local mw = require "meshwright"
local dp, tp, pp = mw.plugins("dp", "tp", "pp")
mw.sweep { name = "mixes",
  base = { model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 }, sequence = 16,
    data = mw.synthetic {}, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 6, threads = 1, trace = { 4, 5 } },
  over = { plan = { { dp(2) }, { pp { 2, schedule = "zb-h1" } }, { dp(2), tp(2) } }, seed = { 1, 2 } },
  same_loss_as = "dp(2)" }:go()
"""
PLAN = """\
local mw = require "meshwright"
local dp, pp = mw.plugins("dp", "pp")
mw.plan { model = mw.llama { layers = %d, hidden = 32, heads = 4, ffn = 64, vocab = 64 }, sequence = 16,
  data = mw.synthetic {}, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 1, plan = { %s } }
"""
SEARCH = """\
local mw = require "meshwright"
mw.search { model = mw.llama { layers = 8, hidden = 2048, heads = 16, ffn = 5632, vocab = 32000 }, sequence = 2048, batch = 16,
  precision = "bf16", cluster = mw.cluster("dgx-h100", { nodes = 1 }), checked = 6, best = 3, recompute = { "none", "full" },
  strategies = { "dp", "zero", "tp" }, schedules = {} }
"""
PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{graphicx,booktabs%s}
\setlength{\textwidth}{7in}\setlength{\columnsep}{0.25in}\setlength{\oddsidemargin}{-0.25in}
\begin{document}
%s
\end{document}
"""
SVG = "{http://www.w3.org/2000/svg}"


def words(svg):
    return [text.text for text in xml.parse(svg).iter(f"{SVG}text")]


def bars(svg):
    """The widths of the bars, in their order; and the place at which all of them begin."""
    found = {}
    for group in xml.parse(svg).iter(f"{SVG}g"):
        if group.get("id", "").startswith("bar "):
            x = [float(number) for number in re.findall(r"[ML] (\S+) \S+", group.find(f"{SVG}path").get("d"))]
            found[tuple(map(int, group.get("id").split()[1:]))] = min(x), max(x) - min(x)
    begin, = {round(x, 3) for (_, series), (x, _) in found.items() if series == 0}
    return begin, [width for _, (_, width) in sorted(found.items())]


def made_up(count, **asked):
    """A request of `count` mixes whose names are long, on three axes; every fifth is of another work."""
    facts = []
    for n in range(count):
        plan, recompute = f'{{ pp {{ {2 ** (n // 6)}, schedule = "interleaved" }}, tp({1 + n % 2}) }}', ["none", "selective", "full"][n % 3]
        name, speed = f"{plan}, {recompute}", 2e4 + 1e3 * (n * 7 % count)
        facts.append({
            "name": name, "own_name": name, "values": {"plan": plan, "recompute": recompute, "microbatch": str(1 + n // 6)},
            "verdict": "failed" if n == 4 else "right", "predicted": False, "on_edge": n % 5 == 2, "work": int(n % 5 == 3),
            "memory": {"parameters": 2e9 + n * 1e8, "activations": 4e9 - n * 1e8}, "bytes": {"tp": 1e8, "pp": 2e7 + n},
            "losses": [[[step, 5 - step / 50 + run / 9] for step in range(20)] for run in range(2)], "held_out_losses": [],
            "runs": 2, "tokens_per_second": speed, "half": speed / 9, "step_seconds": 1e5 / speed, "peak_bytes": 6e9 + n % 7,
            "ranks": 2 ** (1 + n % 3), "parts": {"compute": 1.0, "bubble": 0.2}, "measured_parts": {}, "stages": []})
    return {"rows": facts, "works": [{"batch": "8"}, {"batch": "16"}], "axes": ["plan", "recompute", "microbatch"],
            "asked": {"width": 3.3, "font": "", "rows": [], "columns": "", "names": [], "pgf": False, **asked}}


def overlapping(request):
    """Pairs of texts that overlap in any of the figures, and texts that are not wholly in one."""
    found = []
    for figure in figures_of(request)[0]:
        if figure.kind == "table":
            continue
        canvas = Drawing(figure, request["asked"]["width"], request["asked"]["font"]).draw()
        canvas.canvas.draw()
        wide, high = canvas.canvas.get_width_height()
        boxes = [(text.get_text(), text.get_window_extent()) for text in canvas.findobj(Text)
                 if text.get_text() and text.get_visible()]
        for n, (name, box) in enumerate(boxes):
            if box.x0 < -1 or box.y0 < -1 or box.x1 > wide + 1 or box.y1 > high + 1:
                found.append((figure.name, name))
            # Letters leave room in the boxes of their lines.
            found += [(figure.name, name, other) for other, of in boxes[n + 1:]
                      if min(box.x1, of.x1) - max(box.x0, of.x0) > 1 and min(box.y1, of.y1) - max(box.y0, of.y0) > 2]
    return found


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


class Figures(ProgramCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.home.cleanup)
        folder = pathlib.Path(cls.home.name)
        (folder / "sweep.lua").write_text(SWEEP)
        done = loaded.run([BIN, "run", "sweep.lua"], cwd=folder, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        cls.sweep = folder / "runs/mixes"
        for number, (layers, plan) in enumerate(((2, "pp { 2, schedule = '1f1b' }"), (2, "dp(2), pp(2)"), (4, "dp(2)"), (4, "dp(4)"))):
            (folder / "plan.lua").write_text(PLAN % (layers, plan))
            done = loaded.run([BIN, "plan", "plan.lua", "--json"], cwd=folder, text=True, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:]
            (folder / f"plan{number}.jsonl").write_text(done.stdout)
        cls.plans = [folder / "plan0.jsonl", folder / "plan1.jsonl"]
        cls.deeper = [folder / "plan2.jsonl", folder / "plan3.jsonl"]
        (folder / "search.lua").write_text(SEARCH)
        done = loaded.run([BIN, "search", "search.lua", "--json"], cwd=folder, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        cls.found = folder / "found.jsonl"
        cls.found.write_text(done.stdout)

    def draw(self, *arguments, code=0, **variables):
        done = loaded.run([BIN, "report", *map(str, arguments), "--json"], cwd=self.folder,
                          text=True, timeout=300, env=dict(os.environ, **variables))
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        problems(lines)  # whose words are those that are listed
        return lines[-1]

    def test_a_sweep(self):
        made = self.draw(self.sweep, "--figures", "out")
        names = {figure["name"] for figure in made["figures"]}
        self.assertEqual(names, {"speed", "memory", "bytes", "breakdown", "pareto", "loss", "scaling", "summary",
                                 "timeline_measured", "timeline_simulated"})
        self.assertEqual([one["name"] for one in made["not_drawn"]], ["held_out_loss"])
        command = f"meshwright report {self.sweep} --figures out"
        for figure in made["figures"]:
            for file in figure["files"]:
                self.assertIn(command.encode(), (self.folder / file).read_bytes(), file)
        out = self.folder / "out"
        mixes = {row["mix"] for row in rows(out / "speed.csv")}
        self.assertEqual(mixes, {"dp(2)", 'pp { 2, schedule = "zb-h1" }', "{ dp(2), tp(2) }"})
        for name in ("dp(2)", "{ dp(2), tp(2) }", "tokens/s"):
            self.assertIn(name, words(out / "speed.svg"))
        # The bars begin at zero, and are as long as their numbers.
        begin, wide = bars(out / "speed.svg")
        speeds = [float(row["measured (tokens/s)"]) for row in rows(out / "speed.csv")]
        for bar, speed in zip(wide, speeds, strict=True):
            self.assertAlmostEqual(bar / wide[0], speed / speeds[0], places=2)
        zero = [text for text in xml.parse(out / "speed.svg").iter(f"{SVG}text") if text.text == "0"]
        self.assertEqual(len(zero), 1)
        # However noisy these few runs are, half of the width is left to the bars.
        self.assertGreater(max(wide), 0.2 * 237.6)
        losses = rows(out / "loss.csv")
        self.assertEqual(len(losses), 3 * 6)
        self.assertEqual({row["ranks"] for row in rows(out / "scaling.csv")}, {"2", "4"})
        self.assertTrue({row["work"] for row in rows(out / "timeline_measured.csv")} & {"F", "B"})
        # A traced step by parts, beside the predicted one: together they are the step.
        parts = {row["mix"]: {key: float(value) for key, value in row.items() if key != "mix" and value}
                 for row in rows(out / "breakdown.csv")}
        self.assertEqual(set(parts), {f"{mix}, {said}" for mix in mixes for said in ("measured", "predicted")})
        # The figure shows one of the two runs of the mix, by one of its two traced steps.
        measured, steps = parts["dp(2), measured"], []
        for run in self.sweep.glob("*/run.h5"):
            with h5py.File(run) as file:
                if json.loads(file["plan"][()])["mix"] != "dp(2)":
                    continue
                trace, took = file["trace"][:], {int(row["step"]): float(row["seconds"]) for row in file["steps"][:]}
            for step in (4, 5):
                of = trace[trace["step"] == step]
                at_once = {(r["rank"], r["start"], r["end"]) for r in of[of["kind"] == b"transfer"]}
                compute = sum(float(r["end"] - r["start"]) for r in of[(of["kind"] == b"op") & (of["axis"] == b"")]
                              if (r["rank"], r["start"], r["end"]) not in at_once)
                # Ranks begin a step one after the other, and the first wait for the last.
                longest = max(took[step], float(max(of["end"]) - min(of["start"])))
                steps.append((compute / len(set(of["rank"])), took[step], longest))
        self.assertEqual(len(steps), 4)
        self.assertTrue(any(abs(measured["compute (seconds)"] / compute - 1) < 1e-3 and
                            0.99 * seconds < sum(measured.values()) < 1.01 * longest for compute, seconds, longest in steps),
                        (measured, steps))
        table = (out / "summary.tex").read_text()
        self.assertIn(r"\toprule", table)
        self.assertEqual(table.count(r"\\"), 1 + 3)

    def test_counts_are_of_the_runs_that_numbers_come_from(self):
        sweep = self.folder / "runs/mixes"
        shutil.copytree(self.sweep, sweep)
        runs = []
        for path in sorted(sweep.glob("*/run.h5")):
            with h5py.File(path, "r+") as file:
                if json.loads(file["plan"][()])["mix"] != "dp(2)":
                    continue
                result = json.loads(file["result"][()])
                result["timing"]["disturbed"] = not runs  # the first of the two
                del file["result"]
                file["result"] = np.bytes_(json.dumps(result))
                runs.append(float(file["steps"]["loss"][-1]))
        self.assertEqual(len(runs), 2)
        self.draw(sweep, "--figures", "out")
        row, = [row for row in rows(self.folder / "out/summary.csv") if row["mix"] == "dp(2)"]
        self.assertEqual((row["runs"], row["runs of speed"]), ("2", "1"))
        self.assertAlmostEqual(float(row["loss"]), sum(runs) / 2, places=8)
        last = [row for row in rows(self.folder / "out/loss.csv") if row["series"] == "dp(2)"][-1]
        self.assertAlmostEqual(float(last["training loss (nats a token)"]), sum(runs) / 2, places=8)

    def test_size_and_font(self):
        for inches in (3.3, 7):
            made = self.draw(self.plans[0], "--figures", "out", "--width", inches, "--font", "DejaVu Serif")
            self.assertEqual(made["fonts"], ["DejaVu Serif"])
            pdf = (self.folder / "out/memory.pdf").read_bytes()
            width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)
            self.assertAlmostEqual(float(width[1]), 72 * inches, places=1)
            self.assertIn(b"DejaVuSerif", pdf)
            self.assertIn("DejaVu Serif", (self.folder / "out/memory.svg").read_text())
        self.assertEqual(self.draw(self.plans[0], "--figures", "out", "--font", "No Such Font")["fonts"], ["DejaVu Sans"])
        self.draw(self.plans[0], "--figures", "out", "--width", 1, code=2)

    def test_rows_columns_and_names(self):
        self.draw(self.sweep, "--figures", "out", "--rows", "plan", "--names", "dp(2)=our 'base' & more")
        drawn = [row["mix"] for row in rows(self.folder / "out/speed.csv")]
        self.assertEqual(drawn, ["our 'base' & more", 'pp { 2, schedule = "zb-h1" }', "{ dp(2), tp(2) }"], "in the sweep's order")
        self.assertIn("our 'base' & more", words(self.folder / "out/speed.svg"))
        self.assertIn(r"our 'base' \& more", (self.folder / "out/speed.tex").read_text())
        self.draw(self.sweep, "--figures", "out", "--rows=-tokens_per_second", "--where", 'values.plan:find("dp") and ranks >= 2')
        speeds = [float(row["measured (tokens/s)"]) for row in rows(self.folder / "out/speed.csv")]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertEqual(len(speeds), 2)
        # Values of a column stand beside each other in its colours, and are columns of the table.
        self.draw(*self.plans, *self.deeper, "--figures", "both", "--columns", "model.layers")
        drawn = rows(self.folder / "both/speed.csv")
        self.assertEqual({row["mix"] for row in drawn},
                         {"pp(2), layers=2 (layers=2)", "{ dp(2), pp(2) }, layers=2 (layers=2)",
                          "dp(2), layers=4 (layers=4)", "dp(4), layers=4 (layers=4)"})
        self.assertIn("layers=4", words(self.folder / "both/speed.svg"))
        self.assertIn("mix & layers=2 & layers=4", (self.folder / "both/speed.tex").read_text())
        for code, hint, arguments in (
                ("usage.value", '"plan"', ("--rows", "plam")), ("usage.value", "--width", ("--columns", "2")),
                ("usage.value", "dp(2)", ("--names", "dp(3)=x")), ("usage.value", "", ("--names", "baseline")),
                ("usage.value", "", ("--where", "ranks > 100")), ("where.field", "", ("--where", "rank > 1")),
                ("where.field", "", ("--where", "values.plann == 'x'")), ("where.syntax", "", ("--where", "ranks >"))):
            with self.subTest(arguments):
                error = self.draw(self.sweep, "--figures", "none", *arguments, code=2)
                self.assertEqual(error["code"], code)
                self.assertIn(hint, error["hint"])
        self.assertFalse((self.folder / "none").exists())

    def test_no_texts_overlap(self):
        for count, asked in ((24, {}), (24, {"columns": "recompute", "rows": ["plan", "microbatch"]}), (30, {"width": 7}),
                             (24, {"names": ["full=recomputed in all layers of the model and of its head as well"]}),
                             (24, {"rows": ["-peak_bytes"], "font": "DejaVu Serif"}), (3, {}), (1, {})):
            with self.subTest(count=count, **asked):
                self.assertEqual(overlapping(made_up(count, **asked)), [])
        # Twenty-four mixes are there with their whole names, and no more are drawn than that.
        speed = figures_of(made_up(30))[0][0]
        self.assertEqual((len(speed.bars), speed.left_out), (24, "the 24 fastest of 30"))
        texts = " ".join(text.get_text() for text in Drawing(speed, 3.3, "").draw().findobj(Text))
        for bar in speed.bars:
            self.assertIn(bar.label, texts)

    def test_two_mixes_are_not_one_bar(self):
        (self.folder / "search.json").write_bytes(self.found.read_bytes())
        error = self.draw("search.json", "--figures", "none", "--rows", "recompute", code=2)
        self.assertIn("would be one bar", error["message"])
        self.assertRegex(error["hint"], "add (plan|microbatch) to --rows")

    def test_plans(self):
        made = self.draw(self.plans[0], "--figures", "one")
        self.assertIn("by stage", next(f["title"] for f in made["figures"] if f["name"] == "breakdown"))
        memory = rows(self.folder / "one/memory.csv")
        plan = json.loads(self.plans[0].read_text().splitlines()[0])
        self.assertEqual([row["stage"] for row in memory], ["stage 0", "stage 1"])
        for row, stage in zip(memory, plan["memory"], strict=True):
            self.assertAlmostEqual(float(row["activations (MiB)"]) * 2**20, stage["activations"], delta=1)
        made = self.draw(*self.plans, "--figures", "both")
        self.assertEqual({f["name"] for f in made["figures"]},
                         {"speed", "memory", "bytes", "breakdown", "pareto", "scaling", "summary"})
        for row in rows(self.folder / "both/breakdown.csv"):
            parts = sum(float(value) for key, value in row.items() if key != "mix" and value)
            steps = {json.loads(p.read_text().splitlines()[0])["step_seconds"] for p in self.plans}
            self.assertTrue(any(abs(parts / step - 1) < 1e-6 for step in steps), (parts, steps))

    def test_a_search(self):
        made = self.draw(self.found, "--figures", "out")
        self.assertEqual({f["name"] for f in made["figures"]}, {"speed", "memory", "bytes", "breakdown", "pareto", "summary"})
        [found] = [json.loads(line) for line in self.found.read_text().splitlines()]
        plans = {(one["plan"], one["microbatch"], one["recompute"]): one["predicted"] for one in found["best"] + found["checked"]}
        points = {tuple(re.fullmatch(r"(.*), microbatch (\d+)(?:, recompute (\w+))?(?: \(does not fit\))?", row["name"]).groups()): row
                  for row in rows(self.folder / "out/pareto.csv")}
        points = {(plan, int(microbatch), recompute or "none"): row for (plan, microbatch, recompute), row in points.items()}
        self.assertEqual(set(points), set(plans))
        self.assertGreaterEqual(len(points), 6)
        good = [one for one in plans.values() if one["fits"]]
        for key, one in plans.items():
            beaten = any(other["peak_bytes"] <= one["peak_bytes"] and other["tokens_per_second"] > one["tokens_per_second"]
                         for other in good)
            self.assertEqual(points[key]["series"], "failed, not compared, or too large" if not one["fits"]
                             else "others" if beaten else "on the Pareto front", key)
            self.assertAlmostEqual(float(points[key]["tokens/s"]) / one["tokens_per_second"], 1, places=6)

    def test_what_is_not_ranked_together(self):
        # Measured and predicted mixes, and mixes of other work, have edges and lines of their own.
        made = self.draw(self.sweep, *self.plans, *self.deeper, "--figures", "out")
        titles = {figure["name"]: figure["title"] for figure in made["figures"]}
        self.assertIn("measured or predicted", titles["speed"])
        self.assertIn("not to be compared", titles["speed"])
        names = {row["mix"] for row in rows(self.folder / "out/speed.csv")}
        self.assertIn("dp(2) (layers=2, measured)", names)
        self.assertIn("dp(4) (layers=4, predicted)", names)
        # Each kind stands below a heading of its own, without it in the names.
        drawn = words(self.folder / "out/speed.svg")
        self.assertEqual([text for text in drawn if text.startswith("layers=")],
                         ["layers=2, measured", "layers=2, predicted", "layers=4, predicted"])
        edges = {row["series"] for row in rows(self.folder / "out/pareto.csv")} - {"others"}
        self.assertEqual(edges, {f"on the Pareto front, layers={layers}, {said}"
                                 for layers, said in ((2, "measured"), (2, "predicted"), (4, "predicted"))})
        lines = {}
        for row in rows(self.folder / "out/scaling.csv"):
            lines.setdefault(row["series"], []).append(row["name"])
        self.assertEqual(len([name for name in lines if name.startswith("measured")]), 1)
        self.assertEqual(len([name for name in lines if name.startswith("predicted")]), 2)
        # What does not fit is in no line of scaling, and is said not to fit.
        plan = json.loads(self.deeper[1].read_text().splitlines()[0])
        (self.folder / "large.jsonl").write_text(json.dumps(dict(plan, fits=False)))
        made = self.draw(self.deeper[0], "large.jsonl", "--figures", "two")
        self.assertIn("scaling", {one["name"] for one in made["not_drawn"]})
        self.assertIn("dp(4) (does not fit)", {row["mix"] for row in rows(self.folder / "two/speed.csv")})

    def test_refused(self):
        (self.folder / "kept").write_text("a file")
        (self.folder / "out").mkdir()
        (self.folder / "out/speed.svg").write_text("<svg>mine</svg>")
        (self.folder / "words.json").write_text("no result\n")
        for code, kind, arguments in ((2, "page.foreign", (self.plans[0], "--figures", "out")),
                                      (2, "file.write", (self.plans[0], "--figures", "kept/out")),
                                      (2, "file.format", ("words.json", "--figures", "new")),
                                      (2, "file.missing", ("none.json", "--figures", "new"))):
            self.assertEqual(self.draw(*arguments, code=code)["code"], kind)
        self.assertEqual((self.folder / "out/speed.svg").read_text(), "<svg>mine</svg>")

    def test_what_is_missing_is_said(self):
        error = self.draw(self.plans[0], "--figures", "new", code=5, MESHWRIGHT_PYTHON="no-such-python")
        self.assertEqual(error["code"], "program.missing")
        for package in ("matplotlib", "numpy"):
            hidden = self.folder / package
            (hidden / package).mkdir(parents=True)
            (hidden / package / "__init__.py").write_text(f"raise ModuleNotFoundError('none', name={package!r})\n")
            error = self.draw(self.plans[0], "--figures", "new", code=5, PYTHONPATH=str(hidden))
            self.assertEqual(error["code"], "python.missing")
            self.assertIn(f"cannot import {package}", error["message"])
            self.assertIn("-m pip install numpy matplotlib", error["hint"])
        (self.folder / "bin").mkdir()
        broken = self.folder / "bin/python"
        broken.write_text("#!/bin/sh\necho it broke >&2\nexit 3\n")
        broken.chmod(0o755)
        error = self.draw(self.plans[0], "--figures", "new", code=5, MESHWRIGHT_PYTHON=str(broken))
        self.assertEqual(error["code"], "program.failed")
        self.assertIn("it broke", error["message"])
        self.assertEqual(self.draw(self.plans[0], "--figures", "new", "--pgf", code=5, PATH="/nowhere")["code"],
                         "program.missing")
        self.assertFalse(any((self.folder / "new").glob("*")))

    def test_in_a_paper(self):
        if not shutil.which("pdflatex"):
            self.skipTest("there is no LaTeX: apt-get install texlive-latex-base texlive-pictures")
        pgf = subprocess.run(["kpsewhich", "pgf.sty"], capture_output=True).returncode == 0
        made = self.draw(self.sweep, "--figures", "out", *(["--pgf"] if pgf else []))
        body = ""
        for figure in made["figures"]:
            files = {pathlib.Path(file).suffix: file for file in figure["files"]}
            if ".pdf" in files and not figure["name"].startswith("timeline"):
                body += f"\\noindent\\includegraphics{{{files['.pdf'][:-4]}}}\n\n"
        if pgf:
            self.assertTrue(all((".pgf" in str(figure["files"])) == (".pdf" in str(figure["files"])) for figure in made["figures"]))
            body += "\n\n".join(f"\\noindent\\input{{out/{name}.pgf}}" for name in ("speed", "memory", "pareto", "loss"))
        body += "\n" + r"\onecolumn \footnotesize" + "\n"
        body += "\n\n".join(f"\\input{{{file}}}" for figure in made["figures"] for file in figure["files"]
                            if file.endswith(".tex"))
        (self.folder / "paper.tex").write_text(PAPER % (",pgf" if pgf else "", body))
        done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"], cwd=self.folder,
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        # A table that says why measured and predicted differ has more lines on some machines.
        self.assertRegex(done.stdout, r"Output written on paper\.pdf \([234] pages")
        self.assertNotIn("Overfull", done.stdout)


if __name__ == "__main__":
    unittest.main()
