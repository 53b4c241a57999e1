"""README.md is true and short: its output is what is printed, its script is that of the
repository. Its commands, like those of all pages, are given in test_page_*.py."""
import subprocess
import sys
import unittest

import pages
from pages import SOURCE, stable

README = (SOURCE / "README.md").read_text()
LONGEST = 150  # lines


def blocks(language):
    return [text for name, text in pages.blocks(README) if name == language]


class Readme(pages.PageCase):
    def test_it_is_short(self):
        self.assertLessEqual(len(README.splitlines()), LONGEST)

    def test_output_and_run_file(self):
        shown, = [block for block in blocks("") if block.startswith("plan ")]
        plan = self.call(["plan", "scripts/quickstart.lua"], whole=True)
        self.assertEqual(plan.stdout.split()[1], shown.split()[1])  # the hash
        done = self.call(["run", "scripts/quickstart.lua"], steps=10, whole=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        printed = stable(done.stderr) + stable(done.stdout)
        expected = stable(shown)
        self.assertGreater(len(expected), 15)
        for line in expected:
            self.assertIn(line, printed)

        # What reads a run file, here and on the page about that.
        page = pages.pages()["docs/reading_runs.md"]
        snippets = blocks("python") + [text for name, text in pages.blocks(page) if name == "python"]
        self.assertGreater(len(snippets), 3)
        for snippet in snippets:
            with self.subTest(snippet):
                read = subprocess.run([sys.executable, "-c", snippet], cwd=self.folder, capture_output=True,
                                      text=True, timeout=300)
                self.assertEqual(read.returncode, 0, read.stderr)
                self.assertTrue(read.stdout.strip(), "it prints nothing")

    def test_script(self):
        script, = blocks("lua")
        self.assertEqual(script, (SOURCE / "scripts/quickstart.lua").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
