"""scripts/long_context.lua: what is predicted to be the longest sequence within the limit runs
within it, and the chart shows it."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

BIN = os.environ["MESHWRIGHT_BIN"]
SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
LIMIT = 48  # MiB
FORMS = ["one rank", "tp", "tp, sp", "Ulysses", "gathered keys", "ring", "ring, no zigzag", "ring x Ulysses"]


class LongContext(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(cls.folder.name)
        (folder / ".deps").symlink_to(SOURCE / ".deps")
        done = subprocess.run([BIN, "run", SOURCE / "scripts/long_context.lua"], cwd=folder, capture_output=True,
                              text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.rows = {}
        for line in done.stdout.splitlines():
            found = re.match(r"  (\S.*?) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", line)
            if found:
                cls.rows[found[1]] = [float(n) for n in found.groups()[1:]]
        cls.chart = xml.parse(folder / "runs/long_context.svg").getroot()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_measured_is_predicted_and_within_the_limit(self):
        self.assertEqual(list(self.rows), FORMS)
        for name, (tokens, peak, predicted, *_) in self.rows.items():
            with self.subTest(name):
                self.assertEqual(peak, predicted)
                self.assertLessEqual(peak, LIMIT)
                self.assertGreater(peak, 0.97 * LIMIT)  # 64 tokens more would not fit
                self.assertEqual(tokens % 64, 0)

    def test_each_form_reaches_further_than_one_rank(self):
        tokens = {name: row[0] for name, row in self.rows.items()}
        for name in FORMS[1:]:
            self.assertGreater(tokens[name], 2 * tokens["one rank"])
        self.assertGreater(tokens["tp, sp"], tokens["tp"])
        self.assertGreater(tokens["ring"], tokens["gathered keys"])

    def test_the_chart_has_the_numbers(self):
        texts = [element.text for element in self.chart.iter() if element.tag.endswith("text")]
        for name, row in self.rows.items():
            self.assertIn(name, texts)
            self.assertEqual(texts.count(f"{int(row[0]):,}"), 2 * [r[0] for r in self.rows.values()].count(row[0]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
