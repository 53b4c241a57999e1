# label: cli
"""A sweep's table on stdout: shown once, by whoever is first."""
import unittest

from cases import ProgramCase

SCRIPT = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
local sweep = mw.sweep {
  name = "s",
  base = {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 },
    data = mw.synthetic {}, sequence = 8, batch = 4, threads = 1,
    optimizer = mw.adamw { lr = 1e-2 }, steps = 2,
  },
  over = { plan = { { dp(2) }, { tp(2) } } },
}
"""
GO = "local cells = sweep:go()\n"


class Table(ProgramCase):
    def stdout(self, after):
        self.write(SCRIPT + after)
        done = self.call("sweep", "script.lua", "--predict")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_shown_once(self):
        """By the script that prints the cells, or by the program for it, before what the script says next."""
        table = "2 predicted"
        for after in ("print(sweep:go())\n", GO, "", GO + "print('after')\n", "print('before', (sweep:go()))\n",
                      GO + "print('after', cells)\n"):
            with self.subTest(after):
                said = self.stdout(after)
                self.assertEqual(said.count(table), 1, said)
                if "('after')" in after:
                    self.assertLess(said.index(table), said.index("after"))
        self.assertNotIn(table, self.stdout("sweep:go { quiet = true }\n"))
        self.assertEqual(self.stdout("print(sweep:go { quiet = true })\n").count(table), 1)

    def rows(self, over, *more):
        """The words of each row, after the cell's name, by that name."""
        self.write(SCRIPT.replace("{ plan = { { dp(2) }, { tp(2) } } }", over) + GO)
        done = self.call("sweep", "script.lua", "--predict", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_only_equal_work_is_compared(self):
        """Tokens of another model are other work: no percentage."""
        plans = self.rows("{ plan = { { dp(2) }, { tp(2) } } }")
        self.assertRegex(plans, r"(?m)^ +tp\(2\) .* [+-][\d.]+ %")
        models = self.rows("{ [\"model.layers\"] = { 2, 4 } }", "--set", "plan={dp(2)}")
        self.assertRegex(models, r"(?m)^ +model.layers=4 ")
        self.assertNotRegex(models, r"[+-][\d.]+ %")
        seeds = self.rows("{ data = { mw.synthetic { seed = 1 }, mw.synthetic { seed = 2 } } }", "--set", "plan={dp(2)}")
        self.assertRegex(seeds, r"[+-][\d.]+ %")

    def test_numbers_have_short_names(self):
        rates = "{ [\"optimizer.lr\"] = { 3 * 1e-5, 0.1 + 0.2, 0.5 } }"
        said = self.rows(rates, "--set", "plan={dp(2)}")
        self.assertIn("optimizer.lr=3e-05 ", said)
        self.assertIn("optimizer.lr=0.3 ", said)
        # … but for those that would have one name.
        said = self.rows("{ [\"optimizer.lr\"] = { 0.3, 0.1 + 0.2 } }", "--set", "plan={dp(2)}")
        self.assertIn("optimizer.lr=0.3 ", said)
        self.assertIn("optimizer.lr=0.30000000000000004 ", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
