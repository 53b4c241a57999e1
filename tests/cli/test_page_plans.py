"""What README.md and docs/ say to plan, draw and list does so, and prints what they show."""
import shlex
import unittest

import pages
from pages import stable

OTHERS = {"run", "trace", "report", "verify", "compare"}  # test_page_runs.py, test_page_checks.py


class Plans(pages.PageCase):
    def test_commands(self):
        shown = {tuple(shlex.split(typed)[1:]) for _, typed, _ in pages.outputs()}
        verbs = {arguments[0] for text in pages.pages().values() for arguments, _ in pages.commands_in(text)}
        self.assertLessEqual({"plan", "plugins", "schedule", "doctor"}, verbs)
        self.assertLessEqual(OTHERS, verbs)
        given = pages.commands(*verbs - OTHERS)
        self.assertGreater(len(given), 15)
        for arguments, (code, page) in given.items():
            if arguments in shown or " ".join(arguments) in pages.ELSEWHERE:
                continue
            if arguments[:2] == ("bench", "train"):  # test_bench_train.py has all of these, with less to train
                continue
            with self.subTest(" ".join(arguments), page=page):
                done = self.call(arguments)
                self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])

    def test_shown_output_is_printed(self):
        """Line by line, in order."""
        shown = list(pages.outputs())
        self.assertGreater(len(shown), 15)
        for page, typed, printed in shown:
            with self.subTest(typed, page=page):
                arguments = shlex.split(typed)[1:]
                self.assertNotIn(arguments[0], OTHERS, "what differs from run to run is not shown in a console block")
                done = self.call(arguments)
                lines = iter(stable(done.stderr) + stable(done.stdout))
                expected = stable(printed)
                self.assertTrue(expected, "nothing is shown")
                for line in expected:
                    self.assertIn(line, lines, f"not printed, or not in this order, by {typed}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
