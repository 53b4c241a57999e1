"""The tutorial (docs/tutorial.md) is walked from its first command to its last, in one folder, as a
reader walks it: each command ends well and prints what the page shows, and the scripts that the
page shows are those that it runs."""
import re
import shlex
import unittest

import pages
from pages import SOURCE, stable

STEPS = "3"  # of each training: the fewest of which one is traced after the first two


def masked(text):
    """Stable lines, without what depends on the machine and on the number of steps: of such a row its name alone."""
    for line in stable(text):
        line = re.sub(r"^(loss at step|step_seconds|cpu_seconds_per_step|peak_bytes)\b.*", r"\1", line)
        line = re.sub(r"(\d+ (?:done|predicted)) .*?[\d.]+ MiB ± 0 B.*", r"\1", line)
        yield line


class Tutorial(pages.PageCase):
    def test_every_command_does_what_the_page_shows(self):
        shown = list(pages.outputs(walk=True))
        self.assertGreater(len(shown), 12)
        for _, typed, printed in shown:
            arguments = shlex.split(typed)[1:]
            if arguments[0] in ("run", "sweep", "verify"):
                arguments += ["--set", f"steps={STEPS}"]
            with self.subTest(typed):
                done = self.call(arguments, whole=True)
                self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
                lines, expected = iter([*masked(done.stderr), *masked(done.stdout)]), list(masked(printed))
                self.assertTrue(expected, "nothing is shown")
                for line in expected:
                    self.assertIn(line, lines, f"not printed, or not in this order, by {typed}")
        for name in ("memory.svg", "memory.csv", "memory.tex", "speed.svg"):
            self.assertTrue((self.folder / "runs/figures" / name).is_file(), name)
        self.assertTrue((self.folder / "runs/tutorial.html").is_file())

    def test_the_page_has_all_of_its_commands_in_console_blocks(self):
        text = pages.pages()[pages.WALK]
        self.assertEqual([arguments for arguments, _ in pages.commands_in(text)],
                         [shlex.split(typed)[1:] for _, typed, _ in pages.outputs(walk=True)])

    def test_the_scripts_that_it_shows_are_those_that_it_runs(self):
        blocks = [block for language, block in pages.blocks(pages.pages()[pages.WALK]) if language == "lua"]
        self.assertEqual(sorted(blocks), sorted(path.read_text() for path in (SOURCE / "scripts/tutorial").glob("*.lua")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
