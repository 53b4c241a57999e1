"""scripts/zero_memory.lua: the ZeRO paper's table 1 and a small model's measured bytes beside
the formulas."""
import os
import pathlib
import re
import subprocess
import unittest

BIN = os.environ["MESHWRIGHT_BIN"]
SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
WAYS = (1, 2, 4, 8)
# Rajbhandari et al. 2020, table 1: GB a device by ways; for 7.5 B,
# 128 B and 1 T parameters, stages 1 to 3.
PAPER = {
    1: (120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000),
    4: (52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000),
    16: (35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000),
    64: (31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250),
    256: (30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5),
    1024: (30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6),
}
PARAMETERS = (7.5, 128, 1000)  # 10^9


def mixed(stage, parameters, ways):
    """2 + 2 + 12 bytes a parameter, those from the stage's on in parts."""
    sharded = {1: 12, 2: 14, 3: 16}[stage]
    return (16 - sharded) * parameters + sharded * parameters / ways


class ZeroMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([BIN, "run", SOURCE / "scripts/zero_memory.lua"], cwd=SOURCE, capture_output=True,
                              text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        cls.text = done.stdout
        table, measured = done.stdout.split("\n\n", 1)
        numbers = lambda line: [float(n) for n in re.findall(r"-?[\d.]+", line)]
        rows = lambda part: [numbers(line) for line in part.splitlines() if re.match(r"\s*\d+\s+\d", line)]
        cls.table, cls.measured = rows(table), rows(measured)

    def test_the_papers_column_is_the_papers(self):
        self.assertEqual([row[0] for row in self.table], list(PAPER))
        for ways, *cells in self.table:
            for ours, paper in zip(cells[1::2], PAPER[ways], strict=True):
                self.assertLessEqual(abs(ours - paper), max(0.01 * paper, 0.006), ways)

    def test_the_predicted_column_is_the_papers_too(self):
        for ways, *cells in self.table:
            for ours, paper in zip(cells[0::2], PAPER[ways], strict=True):
                self.assertLessEqual(abs(ours - paper), max(0.01 * paper, 0.006), ways)

    def test_measured_is_predicted_and_the_formula(self):
        self.assertEqual([row[:2] for row in self.measured], [[w, s] for w in WAYS for s in (1, 2, 3)])
        one = self.measured[0][2] / 16
        for ways, stage, measured, predicted, formula, off in self.measured:
            self.assertEqual(measured, predicted)
            wanted = mixed(stage, one, ways)
            self.assertLess(abs(measured / wanted - 1), 0.01)
            self.assertLess(abs(formula / wanted - 1), 0.01)
            self.assertLess(abs(off), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
