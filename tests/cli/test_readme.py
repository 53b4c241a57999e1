"""README.md is true: its commands do what it says, its output is what is printed, its scripts
are those of the repository."""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

BIN = os.environ["MESHWRIGHT_BIN"]
SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
README = (SOURCE / "README.md").read_text()
FEW = 2  # steps of a run
# Commands that another test gives as they stand, and looks at more closely.
ELSEWHERE = {"run scripts/long_context.lua": "test_long_context.py", "run scripts/zero_memory.lua": "test_zero_memory.py",
             "run scripts/compare.lua": "test_compare.py", "run scripts/ablations/microbatch.lua": "test_microbatch.py",
             "plan scripts/published/deepseek-v3.lua": "test_published.py"}
# Done by the launcher, which would build, test or install.
LAUNCHER_ONLY = {"test", "build", "format", "lint", "clean"}


def blocks(language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language]


def commands():
    """(arguments, exit code) of every ./meshwright in a code block or at the start of a code span."""
    found = []
    for line in README.splitlines():
        code = re.search(r"\(exit (\d+)\)", line)
        spans = [line] if line.startswith("./meshwright ") else re.findall(
            r"`(\./meshwright [^`]*)`", line)
        found += [(shlex.split(span)[1:], int(code.group(1)) if code else 0) for span in spans]
    return [(arguments, code) for arguments, code in found if arguments[0] not in LAUNCHER_ONLY]


def stable(text):
    """Its lines without what differs from machine to machine or with the steps: times, rates, hashes,
    rules below column heads, blanks."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"\b[\d.]+ (ns|us|ms|s)\b", "", line)
        line = re.sub(r"^plan [0-9a-f]{16}", "plan", line)
        line = re.sub(r"done after \d+ of \d+ steps", "done", line)
        line = " ".join(line.split())
        if line and line != "[…]" and not re.match(r"loss |[- ]+$", line):
            lines.append(line)
    return lines


class Readme(unittest.TestCase):
    def setUp(self):
        # Run files go to a folder of the test's own.
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in ("scripts", ".deps"):
            (self.folder / name).symlink_to(SOURCE / name)

    def call(self, arguments, steps=FEW):
        """With that many steps, if neither the command nor its script says fewer."""
        if arguments[0] in ("run", "verify") and "steps" not in " ".join(arguments):
            said = re.search(r"\bsteps *= *(\d+)", (self.folder / arguments[1]).read_text())
            if int(said[1]) > steps:
                arguments = [*arguments, "--set", f"steps={steps}"]
        return subprocess.run([BIN, *arguments], cwd=self.folder, capture_output=True, text=True,
                              timeout=600)

    def test_commands(self):
        self.assertGreaterEqual(len(commands()), 8)
        verbs = {arguments[0] for arguments, _ in commands()}
        self.assertLessEqual({"run", "plan", "verify", "plugins", "doctor"}, verbs)
        for arguments, code in commands():
            if (elsewhere := ELSEWHERE.get(" ".join(arguments))) is not None:
                self.assertIn(pathlib.Path(arguments[1]).stem, (SOURCE / "tests/cli" / elsewhere).read_text())
                continue
            with self.subTest(" ".join(arguments)):
                done = self.call(arguments)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_output_and_run_file(self):
        shown = [block for block in blocks() if block.startswith("plan ")]
        self.assertEqual(len(shown), 1)
        done = self.call(["run", "scripts/quickstart.lua"], steps=10)
        self.assertEqual(done.returncode, 0, done.stderr)
        printed = stable(done.stderr) + stable(done.stdout)
        expected = stable(shown[0])
        self.assertGreater(len(expected), 15)
        for line in expected:
            self.assertIn(line, printed)

        [script] = blocks("python")
        read = subprocess.run([sys.executable, "-c", script], cwd=self.folder, capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(read.returncode, 0, read.stderr)
        self.assertRegex(read.stdout, r"(?m)^9 +9 ")

    def test_script(self):
        script, schedule = blocks("lua")
        self.assertEqual(script, (SOURCE / "scripts/quickstart.lua").read_text())
        # The schedule of one's own, in a script of two microbatches.
        own = script[:script.index("local run")] + schedule + script[script.index("local run"):]
        own = own.replace("{ dp(2), tp(4) }", "{ pp { ways = 2, schedule = mine } }").replace(
            "batch     = 16,", "batch = 4, microbatch = 2,")
        (self.folder / "own.lua").write_text(own)
        done = self.call(["verify", "own.lua"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("equal", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
