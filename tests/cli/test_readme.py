"""README.md is true and short: its output is what is printed, its script is that of the
repository, and what reads a run file runs where its line of installation has been given. Its other
commands, like those of all pages, are given in test_page_*.py."""
import os
import subprocess
import sys
import tempfile
import unittest

import pages
from pages import SOURCE, stable

README = (SOURCE / "README.md").read_text()
LONGEST = 150  # lines
TIMED_OUT = 124  # the exit code of timeout


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
        page = pages.part("runs", "Reading a run file")
        snippets = blocks("python") + [text for name, text in pages.blocks(page) if name == "python"]
        self.assertGreater(len(snippets), 3)
        for snippet in snippets:
            with self.subTest(snippet):
                read = subprocess.run([sys.executable, "-c", snippet], cwd=self.folder, capture_output=True,
                                      text=True, timeout=300)
                self.assertEqual(read.returncode, 0, read.stderr)
                self.assertTrue(read.stdout.strip(), "it prints nothing")

    def test_what_is_to_be_installed_suffices(self):
        """The line as it stands, in an empty folder, then the README's first snippet in what it made."""
        self.skip_without_packages()
        line, = [block for block in blocks("sh") if "pip install" in block]
        self.assertIn(line.strip(), " ".join(pages.part("runs", "Reading a run file").split()))
        self.assertEqual(self.call(["run", "scripts/quickstart.lua"], steps=2, whole=True).returncode, 0)
        snippet = blocks("python")[0]
        done = subprocess.run(["timeout", "900", "bash", "-ec", f"{line}\npython -c \"$SNIPPET\""], cwd=self.folder, capture_output=True,
                              text=True, env={**os.environ, "SNIPPET": snippet, "PYTHONPATH": "", "PIP_RETRIES": "1"})
        if done.returncode == TIMED_OUT:
            self.skipTest("downloading the packages takes too long here")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tokens_per_second", done.stdout)

    def skip_without_packages(self):
        """Skips where no environment can be made, or where a package cannot be downloaded soon."""
        if subprocess.run(["python3", "-c", "import ensurepip"], capture_output=True).returncode != 0:
            self.skipTest("no environment can be made here: the system's Python lacks ensurepip")
        with tempfile.TemporaryDirectory() as folder:
            got = subprocess.run(["timeout", "60", sys.executable, "-m", "pip", "download", "--no-deps", "-d", folder, "pandas"],
                                 capture_output=True, text=True, env={**os.environ, "PIP_RETRIES": "1"})
            if got.returncode != 0:
                self.skipTest(f"no packages can be downloaded here: {got.stderr[-500:]}")

    def test_script(self):
        script, = blocks("lua")
        self.assertEqual(script, (SOURCE / "scripts/quickstart.lua").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
