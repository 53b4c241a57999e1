# label: cli
"""bench/fit_prediction.py finds the share that made the steps, from a program that prices by it;
bench/chart_prediction.py draws every row."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
# Steps are what products take at 75 % of the peak, and what streams at 70 % of the bandwidth; the
# program's are those of the shares that it is given.
PROGRAM = """\
#!{python} -IS
import json, sys
shares = dict(word.partition(".")[2].split("=") for word in sys.argv[4:] if "." in word)
assert sys.argv[1:4] == ["bench", "prediction", "--json"]
for table in sys.argv[4:]:
    if "=" in table:
        continue
    for k in range(6):
        products, streams = 1.0 + k % 3, 0.2 * (k + 1)
        print(json.dumps({{"table": table, "row": str(k), "unit": "s", "published": products / 0.75 + streams / 0.7,
            "predicted": products / float(shares["gemm"]) + streams / float(shares["bandwidth_share"])}}))
"""


class Fit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = pathlib.Path(folder.name) / "program"
        self.program.write_text(PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def fit(self, *words):
        done = subprocess.run([sys.executable, ROOT / "bench/fit_prediction.py", "a100", "--program", self.program,
                               "--keys", "gemm,bandwidth_share", *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_shares_that_made_the_steps_are_found(self):
        said = self.fit("--only", "narayanan1", "--rounds", "4")
        shares = dict(re.findall(r"^(\w+) = ([\d.]+)$", said, re.MULTILINE))
        self.assertAlmostEqual(float(shares["gemm"]), 0.75, delta=0.01)
        self.assertAlmostEqual(float(shares["bandwidth_share"]), 0.7, delta=0.02)

    def test_a_fit_on_one_table_tells_the_errors_of_all(self):
        last = [line for line in self.fit("--only", "korthikanti5", "--rounds", "1").splitlines() if "all tables" in line]
        self.assertEqual(len(last), 1)
        self.assertIn("vtrain-single", last[0])


class Chart(unittest.TestCase):
    def test_every_row_is_drawn_twice_and_the_mean_error_stands_beside(self):
        rows = [{"table": "one", "row": "a", "unit": "s", "published": 1, "predicted": 1.1},
                {"table": "one", "row": "b", "unit": "s", "published": 10, "predicted": 9.8},
                {"table": "a < b", "row": "c", "unit": "s", "published": 5, "predicted": 20},
                {"table": "memory", "row": "d", "unit": "GB", "published": 5, "predicted": 5},
                {"table": "one", "row": "e", "unit": "s", "published": 5, "predicted": None},
                {"table": "aside", "row": "f", "unit": "s", "published": 5, "predicted": 5, "kept_aside": True}]
        done = subprocess.run([sys.executable, ROOT / "bench/chart_prediction.py"], capture_output=True, text=True,
                              input="".join(json.dumps(row) + "\n" for row in rows))
        self.assertEqual(done.returncode, 0, done.stderr)
        drawn = xml.etree.ElementTree.fromstring(done.stdout)
        space = "{http://www.w3.org/2000/svg}"
        dots = [c for c in drawn.iter(space + "circle") if c.get("r") == "2.5"]
        self.assertEqual(len(dots), 2 * 3)
        texts = [t.text for t in drawn.iter(space + "text")]
        self.assertIn("6.0 %", texts)
        self.assertIn("a < b", texts)
        self.assertNotIn("memory", texts)
        self.assertNotIn("aside", texts)
        width, height = float(drawn.get("width")), float(drawn.get("height"))
        for dot in dots:
            self.assertTrue(0 < float(dot.get("cx")) < width and 0 < float(dot.get("cy")) < height)

    def test_nothing_to_draw_is_said(self):
        done = subprocess.run([sys.executable, ROOT / "bench/chart_prediction.py"], capture_output=True, text=True,
                              input="")
        self.assertEqual(done.returncode, 1)
        self.assertIn("bench prediction --json", done.stderr)


if __name__ == "__main__":
    unittest.main()
