"""scripts/zero_memory.lua: the ZeRO paper's table 1 and a small model's measured bytes beside
the formulas."""
import re
import unittest

from cases import SOURCE, ProgramCase

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


def mixed(stage, parameters, ways):
    """2 + 2 + 12 bytes a parameter, those from the stage's on in parts."""
    sharded = {1: 12, 2: 14, 3: 16}[stage]
    return (16 - sharded) * parameters + sharded * parameters / ways


class ZeroMemory(ProgramCase):
    def test_zero_memory(self):
        done = self.call("run", SOURCE / "scripts/zero_memory.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        numbers = lambda line: [float(n) for n in re.findall(r"-?[\d.]+", line)]
        table, measured = ([numbers(line) for line in part.splitlines() if re.match(r"\s*\d+\s+\d", line)]
                           for part in done.stdout.split("\n\n", 1))

        self.assertEqual([row[0] for row in table], list(PAPER))
        for ways, *cells in table:
            for predicted, formula, paper in zip(cells[0::2], cells[1::2], PAPER[ways], strict=True):
                for ours in (predicted, formula):
                    self.assertLessEqual(abs(ours - paper), max(0.01 * paper, 0.006), ways)

        self.assertEqual([row[:2] for row in measured], [[w, s] for w in WAYS for s in (1, 2, 3)])
        one = measured[0][2] / 16
        for ways, stage, held, predicted, formula, off in measured:
            self.assertEqual(held, predicted)
            wanted = mixed(stage, one, ways)
            self.assertLess(abs(held / wanted - 1), 0.01)
            self.assertLess(abs(formula / wanted - 1), 0.01)
            self.assertLess(abs(off), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
