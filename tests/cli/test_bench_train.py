"""`meshwright bench train`: its rows, chart and page, alone and beside a baseline; what is wrong
with its options; a busy machine; an end by a signal. The baseline is a small program here, which
says what it took, and once the true one."""
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
import unittest
import xml.etree.ElementTree

import hf
import pages
from cases import BIN, SOURCE, ProgramCase

# It takes the place of a Python with torch, and each step takes it {step} seconds. Its weights are
# zero, so that the loss of every step is the logarithm of the vocabulary's size.
STUB = """\
#!{python} -IS
import json, math, os, struct, sys, time
words, here = sys.argv[1:], os.path.dirname(os.path.abspath(__file__))
said = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
if words[0] == "-c":
    print("2.15.0")
elif "save-weights" in said:
    h, f, v = (int(said[key]) for key in ("hidden", "ffn", "vocab"))
    shapes = {{"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}}
    for i in range(int(said["layers"])):
        part = "model.layers.%d." % i
        shapes.update({{part + name + "_layernorm.weight": (h,) for name in ("input", "post_attention")}})
        shapes.update({{part + "self_attn." + name + "_proj.weight": (h, h) for name in "qkvo"}})
        shapes.update({{part + "mlp." + name + "_proj.weight": (f, h) for name in ("gate", "up")}})
        shapes[part + "mlp.down_proj.weight"] = (h, f)
    head, end = {{}}, 0
    for name, shape in shapes.items():
        head[name] = dict(dtype="F32", shape=shape, data_offsets=[end, end + 4 * math.prod(shape)])
        end += 4 * math.prod(shape)
    head = json.dumps(head).encode()
    open(said["save-weights"], "wb").write(struct.pack("<Q", len(head)) + head + bytes(end))
else:
    open(os.path.join(here, "calls"), "a").write(said["mix"] + "\\n")
    if said["mix"] in os.environ.get("STUB_FAILS", "").split():
        sys.exit("RuntimeError: this mix is not for today")
    if said["mix"] in os.environ.get("STUB_SLEEPS", "").split():
        open(os.path.join(here, "pid"), "w").write(str(os.getpid()))
        time.sleep(600)
    ranks = int(said.get("nproc-per-node", 1))
    print("some line before it")
    print(json.dumps(dict(step_s={step}, cpu_s_per_step=2 * {step}, first_step_s=1, startup_from_launch_s=7,
                          rss_sum_mib=10000 * ranks, pss_sum_mib=9000, launcher_rss_mib=0 if ranks == 1 else 400,
                          losses=[math.log(int(said["vocab"]))] * int(said["steps"]))))
"""
# The tests' own Python, whose torch finds its libraries in the way of hf.load().
TRUE = """\
#!{python}
import os, runpy, sys
sys.setdlopenflags(os.RTLD_LAZY)
words = sys.argv[1:]
if words[0] == "-c":
    exec(words[1])
else:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""
FEW = ("--sizes", "mini", "--rounds", "1", "--steps", "3", "--retries", "0")


class BenchTrain(ProgramCase):
    def bench(self, *words, code=0, **environment):
        done = self.call("bench", "train", *words, **environment)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done

    def python(self, text, **keys):
        """A program that takes the place of the baseline's Python."""
        path = self.folder / "python"
        path.write_text(text.format(python=sys.executable, **keys))
        path.chmod(0o755)
        return path

    def beside(self, *words, step=4.0, **keys):
        return self.bench("--baseline", self.python(STUB, step=step), *words, **keys)

    def saved(self, folder="out"):
        return json.loads((self.folder / folder / "bench.json").read_text())

    def test_alone_each_mix_has_a_row_and_a_bar(self):
        done = self.bench("--mixes", "one,dp2", *FEW, "--out", "out", "--json")
        one, two = self.lines(done)
        self.assertIn("ours is measured alone", done.stderr)
        self.assertEqual([(row["size"], row["mix"], row["ranks"]) for row in (one, two)], [("mini", "one", 1), ("mini", "dp2", 2)])
        for row in (one, two):
            self.assertNotIn("baseline", row)
            self.assertGreater(row["resident_bytes"], 20 * 2**20)
            self.assertGreater(row["startup_seconds"], 0)
            self.assertEqual(len(row["losses"]), 3)
        self.assertAlmostEqual(two["over_one"], two["cpu_seconds"] / one["cpu_seconds"])
        self.assertAlmostEqual(one["losses"][2], two["losses"][2], places=4)
        saved = self.saved()
        self.assertEqual(saved["rows"], [one, two])
        self.assertEqual(saved["machine"]["cores"], len(os.sched_getaffinity(0)))
        self.assertIsNone(saved["baseline_torch"])
        drawing = xml.etree.ElementTree.parse(self.folder / "out/mini.svg")
        self.assertEqual(len(drawing.findall(".//{*}rect")), 2)

    def test_ratios_are_of_what_both_sides_took(self):
        done = self.beside("--sizes", "mini", "--mixes", "one,tp2", "--rounds", "2", "--steps", "3", "--retries", "0", "--out", "out", "--json")
        self.assertEqual((self.folder / "calls").read_text().split(), ["single", "tp", "single", "tp"], "in turns")
        rows = self.lines(done)
        for row, memory in zip(rows, (10000, 20400)):
            theirs = row["baseline"]
            self.assertEqual(theirs["cpu_seconds"], 8.0)
            self.assertEqual(theirs["tokens_per_second"], 128)
            self.assertEqual(theirs["resident_bytes"], memory * 2**20)
            for key, figure in (("speed", "tokens_per_second"), ("cpu", "cpu_seconds"), ("resident", "resident_bytes"),
                                ("startup", "startup_seconds")):
                ratio = row[key]
                self.assertLessEqual(ratio["least"], ratio["median"])
                self.assertLessEqual(ratio["median"], ratio["most"])
                # The medians of two pairs are means, however much our two runs differ.
                pair = ratio["least"], ratio["most"]
                self.assertAlmostEqual(ratio["median"] / sum(pair), 0.5)
                # What ours took, as a share of what the baseline took.
                took = statistics.mean(1 / each for each in pair)
                self.assertAlmostEqual(row[figure] / theirs[figure], 1 / took if key == "speed" else took)
            self.assertAlmostEqual(row["losses"][0], math.log(256), places=5)
            self.assertLess(row["loss_difference"], 1e-5)
        self.assertEqual(self.saved()["baseline_torch"], "2.15.0")
        drawing = xml.etree.ElementTree.parse(self.folder / "out/mini.svg")
        self.assertEqual(len(drawing.findall(".//{*}rect")), 6, "three panels of two rows")

    def test_check_exits_1_where_a_target_is_missed(self):
        self.beside("--mixes", "one", *FEW, "--check", step=1000.0)
        done = self.beside("--mixes", "one", *FEW, "--check", code=1, step=0.001)
        self.assertRegex(done.stdout, r"missed: mini one: 0\.\d+ x the baseline in \w+")

    def test_a_page_is_filled_again_and_again(self):
        page = self.folder / "page.md"
        page.write_text("# Title\n\n<!-- bench train: mini -->\nold\n<!-- /bench train: mini -->\n\nThe end.\n")
        for _ in range(2):
            self.beside("--mixes", "one", *FEW, "--page", page)
        text = page.read_text()
        self.assertTrue(text.startswith("# Title") and text.endswith("The end.\n"), text)
        self.assertNotIn("old", text)
        self.assertEqual(len(re.findall(r"(?m)^\| one rank \| \d+ / 128 \| \*\*\d", text)), 1, text)
        self.assertIn("beside stock PyTorch 2.15.0", text)
        self.assertRegex((self.folder / re.search(r"\]\((.*?\.svg)\)", text)[1]).read_text(), "^<svg ")

    def test_a_mix_that_fails_leaves_the_others(self):
        done = self.beside("--mixes", "tp2,one", *FEW, "--out", "out", "--json", code=1, STUB_FAILS="tp")
        error, row = self.lines(done)
        self.assertEqual((error["kind"], error["stage"], error["code"]), ("error", "run", "program.failed"))
        self.assertIn("not for today", error["message"])
        self.assertEqual(row["mix"], "one")
        self.assertEqual([(one["size"], one["mix"]) for one in self.saved()["failed"]], [("mini", "tp2")])

    def test_what_cannot_be_is_refused_before_anything_runs(self):
        good, bad = self.python(STUB, step=1), self.folder / "none"
        bad.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n")
        bad.chmod(0o755)
        for words, code, problem, wanted in (
                (["--mixes", "one,dp3"], 2, ("options", "usage.value"), r'no mix "dp3"; nearest: "dp\d"'),
                (["--sizes", "tinny"], 2, ("options", "usage.value"), r'no size "tinny"; nearest: "tiny"'),
                (["--mixes", ","], 2, ("options", "usage.value"), "no mix is named"),
                (["--out", "/proc/nowhere"], 2, ("options", "usage.value"), r"--out /proc/nowhere: "),
                (["--page", "nowhere.md"], 2, ("options", "usage.value"), r"--page nowhere\.md"),
                (["--baseline", "/nowhere/python"], 5, ("environment", "program.missing"), "cannot be started"),
                (["--baseline", bad], 5, ("environment", "program.missing"), "No module named 'torch'")):
            with self.subTest(words):
                if "--baseline" not in words:
                    words += ["--baseline", good]
                error, = self.lines(self.bench(*words, "--json", code=code))
                self.assertEqual((error["stage"], error["code"]), problem)
                self.assertRegex(error["message"], wanted)
                self.assertTrue(error["hint"])
        for words in (["--rounds", "0"], ["--steps", "2"], ["--others", "-1"], ["--retries", "x"]):
            with self.subTest(words):
                self.bench("--baseline", good, *words, code=2)
        self.assertFalse((self.folder / "calls").exists())

    def test_a_disturbed_pair_is_run_again(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            try:
                done = self.beside("--sizes", "mini", "--mixes", "one", "--rounds", "1", "--steps", "3", "--retries", "1", "--others", "0.05")
            finally:
                busy.kill()
        self.assertEqual((self.folder / "calls").read_text().split(), ["single"] * 2)
        self.assertRegex(done.stderr, r"other programs kept \d+\.\d+ cores busy beside mini one")
        self.assertRegex(done.stderr, r"other programs keep \d+\.\d+ cores busy now")

    def test_an_interrupt_keeps_what_was_measured_and_ends_what_runs(self):
        words = ["--baseline", self.python(STUB, step=4.0), "--mixes", "one,tp2", *FEW, "--out", "out"]
        with subprocess.Popen([BIN, "bench", "train", *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=dict(os.environ, STUB_SLEEPS="tp")) as program:
            pid = self.folder / "pid"
            while not (pid.exists() and pid.read_text()):
                self.assertIsNone(program.poll())
                time.sleep(0.05)
            program.send_signal(signal.SIGINT)
            out, err = program.communicate(timeout=300)
        self.assertEqual(program.returncode, 130, out + err)
        self.assertIn("interrupted", err)
        self.assertRegex(out, r"(?m)^mini +one +1 ")
        self.assertEqual([row["mix"] for row in self.saved()["rows"]], ["one"])
        self.assertFalse(pathlib.Path("/proc", pid.read_text()).exists(), "the baseline still runs")

    def test_beside_the_true_baseline_the_losses_are_equal(self):
        hf.load()
        row, = self.lines(self.bench("--baseline", self.python(TRUE), "--mixes", "one", *FEW, "--json"))
        self.assertLess(row["loss_difference"], 1e-5)
        self.assertEqual(len(row["baseline"]["losses"]), 3)
        self.assertGreater(row["baseline"]["resident_bytes"], 100 * 2**20)

    def test_the_commands_of_the_pages_are_taken(self):
        """Each, those of docs/performance.md too, with the small baseline, one mix and few steps in place of its own."""
        sys.path.insert(0, str(SOURCE / "bench/train"))
        from mixes import MIXES, SIZES, chosen
        fewer = {"--baseline": str(self.python(STUB, step=4.0)), "--rounds": "1", "--page": "page.md"}
        found = [words for words in pages.commands("bench") if words[1] == "train"]
        self.assertGreaterEqual(len(found), 4)
        for words in found:
            said = dict(zip(words[2::2], words[3::2]))
            self.assertLess(0, len(chosen(said.pop("--mixes", "main"), MIXES, "mix")))
            self.assertLess(0, len(chosen(said.pop("--sizes", "tiny"), SIZES, "size")))
            (self.folder / "page.md").write_text("")
            said |= {name: word for name, word in fewer.items() if name in said}
            with self.subTest(words):
                self.bench("--mixes", "one", "--sizes", "mini", "--steps", "3", "--retries", "0",
                           *(part for pair in said.items() for part in pair), *(() if "--rounds" in said else ("--rounds", "1")))

    def test_the_baseline_s_torch_is_the_program_s(self):
        pinned = re.search(r"(?m)^torch==([\d.]+)$", (SOURCE / "bench/train/requirements.txt").read_text())[1]
        self.assertIn(f"wheel/x86_64 torch {pinned} ", (SOURCE / "cmake/deps.txt").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
