"""tests/nightly: it lists its parts, runs those that are chosen, tells what failed, and ends all
that it started. In place of the launcher and of what else it calls stands a script that does as its
name in the folder `does` says."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from cases import SOURCE, ProgramCase

CALLED = """#!/bin/bash
cd "$(dirname "$(readlink -f "$0")")"/does
for word in "$@"; do
  if [[ -f $word ]]; then source "./$word"; fi
done
"""
CTEST = """\
The following tests did not run:
\t  2 - unit/skipped_test (Skipped)
The following tests FAILED:
\t  3 - base/text_test (Failed)
\t 17 - run/executor_test (Timeout)
Errors while running CTest
"""
PARTS = ["normal", "repeat", "matrix", "asan", "tsan", "parts", "fuzz", "experiments", "chaos", "leaks"]


class Nightly(ProgramCase):
    def setUp(self):
        super().setUp()
        # Its own commands, in a folder in which they do as this test says.
        for path in ("tests/fuzz", "tests/experiments", "does"):
            (self.folder / path).mkdir(parents=True)
        shutil.copy(SOURCE / "tests/nightly", self.folder / "tests/nightly")
        (self.folder / "meshwright").write_text(CALLED)
        (self.folder / "meshwright").chmod(0o755)
        for path in ("tests/repeat", "tests/fuzz/fuzz.py", "tests/experiments/experiments.py"):
            (self.folder / path).symlink_to(self.folder / "meshwright")

    def does(self, word, text):
        (self.folder / "does" / word).write_text(text)

    def command(self, *arguments):
        return [sys.executable, self.folder / "tests/nightly", *arguments]

    def nightly(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def summary(self):
        """What summary.json has: part -> facts. What summary.txt has must be what was printed."""
        path = self.folder / "night"
        return {part["part"]: part for part in json.loads((path / "summary.json").read_text())["parts"]}

    def test_the_list_has_every_part_and_runs_none(self):
        self.does("test", "echo ran >../ran")
        said = self.nightly("--list", "--minutes", "30", "--seed", "7")
        self.assertEqual([line.split(":")[0] for line in said.splitlines() if line[0] != " "], PARTS)
        self.assertIn("fuzz.py --minutes 30 ", said)
        self.assertIn("--minutes 15 --processes 2", said)
        self.assertIn("--seed 7 ", said)
        self.assertFalse((self.folder / "ran").exists())
        self.assertFalse((self.folder / "build-nightly").exists())

    def test_its_commands_are_there(self):
        """What each part calls is a file of the source folder, and the leak check a test of that name."""
        listed = subprocess.run([SOURCE / "tests/nightly", "--list"], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            words = line.split()
            if line.startswith("    ") and words[0] not in ("rm", "env"):
                self.assertTrue(os.access(SOURCE / words[0], os.X_OK), line)
        self.assertTrue((SOURCE / "tests/cli/test_leaks.py").is_file())

    def test_parts_are_chosen_and_left_out(self):
        (self.folder / "build").mkdir()
        said = self.nightly("asan", "matrix", "normal", "--without", "matrix", "--folder", self.folder / "night")
        self.assertEqual([(name, part["outcome"]) for name, part in self.summary().items()], [("normal", "passed"), ("asan", "passed")])
        self.assertFalse((self.folder / "build").exists(), "its build is a fresh one")
        self.assertIn((self.folder / "night/summary.txt").read_text(), said)
        self.assertNotIn("matrix", said)

    def test_a_part_that_fails_is_told_and_stops_no_other(self):
        self.does("asan", f"cat <<'TEXT'\n{CTEST}TEXT\nexit 8")
        self.does("build", "echo 'a line'; echo 'no compiler'; exit 5")
        said = self.nightly("asan", "experiments", "chaos", "--folder", self.folder / "night", code=1)
        parts = self.summary()
        self.assertEqual({name: part["outcome"] for name, part in parts.items()},
                         {"asan": "failed", "experiments": "failed", "chaos": "passed"})
        self.assertEqual(parts["asan"]["failed"], ["3 - base/text_test (Failed)", "17 - run/executor_test (Timeout)"])
        self.assertRegex(parts["asan"]["why"], "--preset asan .*: exit code 8$")
        self.assertEqual(parts["experiments"]["why"], "./meshwright build: exit code 5")
        self.assertEqual(parts["experiments"]["failed"][-1], "no compiler")
        log = pathlib.Path(parts["experiments"]["log"]).read_text()
        self.assertNotIn("experiments.py", log, "the second command of a part whose first failed")
        for text in ("3 - base/text_test (Failed)", "no compiler", parts["asan"]["log"]):
            self.assertIn(text, said)

    def test_processes_that_are_left_behind_are_ended_and_told(self):
        self.does("tsan", "setsid sleep 1234 </dev/null >/dev/null 2>&1 & echo $! >../left")
        self.nightly("tsan", "--folder", self.folder / "night", code=1)
        self.assertRegex(self.summary()["tsan"]["why"], "leaves processes behind: sleep$")
        self.gone("left")

    def test_a_part_without_an_end_is_ended(self):
        self.does("tsan", "echo $$ >../left; sleep 1234")
        self.nightly("tsan", "leaks", "--hours", "0.0001", "--folder", self.folder / "night", code=1)
        parts = self.summary()
        self.assertRegex(parts["tsan"]["why"], "not over after 0.0001 hours$")
        self.gone("left")

    def test_ctrl_c_ends_everything(self):
        # The second process has left the session, and heeds no Ctrl-C.
        self.does("asan", "setsid bash -c 'trap \"\" INT; echo $$ >../two; while true; do sleep 1; done' &\necho $$ >../one; sleep 1234")
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), subprocess.Popen(self.command("asan", "tsan", "--folder", "night"), cwd=self.folder,
                                                        start_new_session=True, stdout=subprocess.PIPE, text=True) as process:
                while not all((self.folder / name).exists() and (self.folder / name).read_text() for name in ("one", "two")):
                    time.sleep(0.05)
                process.send_signal(number)
                said = process.communicate(timeout=300)[0]
                self.assertEqual(process.returncode, 130, said)
                self.assertEqual([(name, part["outcome"]) for name, part in self.summary().items()], [("asan", "interrupted")])
                for name in ("one", "two"):
                    self.gone(name)
                    (self.folder / name).unlink()

    def gone(self, name):
        pid = int((self.folder / name).read_text())
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_what_is_refused(self):
        self.assertIn("there is no part 'msan'; parts: normal, repeat", self.nightly("msan", code=2))
        self.assertIn("there is no part 'fast'", self.nightly("--without", "fast", code=2))
        self.assertIn("more than 0", self.nightly("--minutes", "0", code=2))
        self.assertFalse((self.folder / "build-nightly").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
