"""A sweep that is listed or printed for a cluster and not run: what is said, and how it ends."""
import unittest

from cases import ProgramCase

GO = "local cells = sweep:go()\n"
EXPERIMENT = """{ model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {}, sequence = 8,
    batch = 4, optimizer = mw.adamw { lr = 1e-2 }, steps = 2 }"""
SCRIPT = f"""\
local mw = require "meshwright"
local sweep = mw.sweep {{ name = "s", base = {EXPERIMENT}, over = {{ seed = {{ 1, 2 }} }} }}
"""


class Listed(ProgramCase):
    def sweep(self, after, *arguments):
        return self.call("sweep", self.write(SCRIPT + after), *arguments)

    def test_what_stands_behind_go_is_not_come_to(self):
        """It works with results, and there are none."""
        after = GO + "print('answer', cells[1].losses[1])\n"
        for arguments in (["--dry"], ["--print", "sbatch"]):
            done = self.sweep(after, *arguments)
            self.assertEqual((done.returncode, "answer" in done.stdout + done.stderr), (0, False), done.stderr)
        done = self.sweep(after, "--dry")
        self.assertRegex(done.stdout, r"2 of 2 cells would run")
        self.assertRegex(done.stdout, r"seed=2 +would run")
        rows = self.lines(self.sweep(after, "--dry", "--json"))
        self.assertEqual([(row["kind"], row["status"]) for row in rows], [("cell", "queued")] * 2)
        self.assertFalse((self.folder / "runs").exists())

    def test_in_the_scripts_own_words_it_goes_on(self):
        done = self.sweep("local all = sweep:go { dry = true }\nprint('cells', #all)\n")
        self.assertIn("cells\t2", done.stdout)

    def test_sweeps_that_were_made_before_are_listed_too(self):
        done = self.sweep(f'mw.sweep {{ name = "t", base = {EXPERIMENT}, over = {{ seed = {{ 3 }} }} }}\n' + GO + "error('not here')", "--dry")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?s)sweep s: 2 of 2 .*sweep t: 1 of 1 ")

    def test_errors_before_go_are_errors(self):
        done = self.sweep("error('wrong')\n" + GO, "--dry", "--json")
        self.assertEqual((done.returncode, self.lines(done)[0]["code"]), (2, "script.error"))


if __name__ == "__main__":
    unittest.main()
