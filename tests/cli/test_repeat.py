"""tests/repeat: it runs the tests of a build many times, some beside busy programs, tells which do
not always pass and keeps what they said, goes on where it stopped, and ends what it started."""
import json
import signal
import subprocess
import sys
import time
import unittest

from cases import SOURCE, ProgramCase

# Name: what it does in a shell, in the folder of the test.
TESTS = {
    "unit/passes": "echo x >>passes",
    "unit/fails_now_and_then": "echo x >>now; test $(wc -l <now) != 2 || { echo this is why; exit 3; }",
    "unit/skipped": "exit 77",
    "cli/never_ends": "echo it began; sleep 1000",
    # How many busy programs the same parent has started.
    "cli/counts": "for at in /proc/[0-9]*; do if grep -qs \"^PPid:.$PPID$\" $at/status && "
                  "grep -qs 'while [T]rue: pass' $at/cmdline; then echo x; fi; done | wc -l >>counts",
    "unit/of_the_matrix": "exit 1",
}


class Repeat(ProgramCase):
    def setUp(self):
        super().setUp()
        build = self.folder / "build"
        build.mkdir()
        text = ""
        for name, does in TESTS.items():
            label = "matrix" if "matrix" in name else name.split("/")[0]
            text += (f"add_test([=[{name}]=] bash -c [=[{does}]=])\n"
                     f"set_tests_properties([=[{name}]=] PROPERTIES LABELS {label} SKIP_RETURN_CODE 77 "
                     f"TIMEOUT {1 if 'never' in name else 300} WORKING_DIRECTORY [=[{self.folder}]=] ENVIRONMENT OF=a=b)\n")
        (build / "CTestTestfile.cmake").write_text(text)

    def command(self, *arguments):
        return [sys.executable, str(SOURCE / "tests/repeat"), "--build", "build", "--folder", "found", *map(str, arguments)]

    def repeat(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), cwd=self.folder, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def rows(self):
        return {row["test"]: row for row in json.loads((self.folder / "found/summary.json").read_text())["tests"]}

    def test_the_list_leaves_out_the_matrix(self):
        self.assertEqual(self.repeat("--list").split(), [name for name in TESTS if "matrix" not in name])
        self.assertEqual(self.repeat("--list", "-L", "matrix").split(), ["unit/of_the_matrix"])
        self.assertFalse((self.folder / "found").exists())

    def test_which_do_not_always_pass(self):
        said = self.repeat("-n", 3, "-R", "^unit/", code=1)
        rows = self.rows()
        self.assertEqual({name: (row["runs"], row["failed"], row["skipped"]) for name, row in rows.items()},
                         {"unit/fails_now_and_then": (3, 1, 0), "unit/passes": (3, 0, 0), "unit/skipped": (3, 0, 3)})
        log, = rows["unit/fails_now_and_then"]["logs"]
        self.assertRegex(said, r"FAILED unit/fails_now_and_then, run 1.*, exit code 3: ")
        for text in ("unit/fails_now_and_then: 1 of 3 runs failed", log, "    this is why"):
            self.assertIn(text, said)
        self.assertEqual(said[said.index("3 tests, 9 runs"):], (self.folder / "found/summary.txt").read_text())
        self.assertEqual([path.name for path in (self.folder / "found").glob("*.log")], ["unit-fails_now_and_then-1.log"])
        # It goes on: of what has run three times the fourth run is left.
        self.repeat("-n", 4, "-R", "^unit/", code=1)
        self.assertEqual((self.folder / "passes").read_text(), "x\n" * 4)
        self.assertEqual(self.rows()["unit/fails_now_and_then"]["runs"], 4)

    def test_some_runs_are_beside_busy_programs(self):
        self.repeat("-n", 4, "--busy", 2, "-R", "counts")
        self.assertEqual(sorted((self.folder / "counts").read_text().split()), ["0", "0", "2", "2"])
        self.assertEqual((self.rows()["cli/counts"]["runs"], self.rows()["cli/counts"]["busy_runs"]), (4, 2))

    def test_one_that_never_ends_has_failed(self):
        said = self.repeat("-n", 1, "-R", "never", code=1)
        self.assertIn("exit code timeout", said)
        self.assertIn("it began", said)

    def test_a_budget_of_time_and_an_interrupt(self):
        self.assertIn("0 tests, 0 runs", self.repeat("-R", "passes", "--minutes", "1e-9"))
        text = (self.folder / "build/CTestTestfile.cmake").read_text()
        (self.folder / "build/CTestTestfile.cmake").write_text(text.replace("TIMEOUT 1 ", "TIMEOUT 300 "))
        with subprocess.Popen(self.command("-R", "never"), cwd=self.folder, stdout=subprocess.PIPE, text=True) as process:
            while not [log for log in self.folder.glob("found/*.log") if log.read_text()]:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=300)[0]
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("0 tests, 0 runs", said)

    def test_what_is_refused(self):
        self.assertIn("no test of build matches", self.repeat("-R", "no such", code=2))
        self.assertIn("--regex: ", self.repeat("-R", "(", code=2))
        self.assertIn("take more than 0", self.repeat("-n", 0, code=2))
        self.assertIn("take more than 0", self.repeat("-n", 2, "--busy", 3, code=2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
