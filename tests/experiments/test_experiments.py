# label: parity
"""Random experiments: each is proved, equals one rank and holds and sends what is predicted, or is
refused with a reason.

A failure is made smaller and written as a script, whose path is printed. `experiments.py` beside
this file tries others."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import unittest

import pages
from cases import SOURCE, TEST_PLUGINS, UNPROVED, ProgramCase, matrix
from experiments import FORMS, Session, options
from judge import judged
from lua_tree import Call, Raw, Table, render
from schedules import comes_to_an_end
from shrink import shrunk
from workers import Worker

HERE = pathlib.Path(__file__).resolve().parent
FAILED = os.environ.get("MESHWRIGHT_BUILD", ".") + "/experiments-failed"


def plain(*plan, **more):
    """A small experiment of that plan."""
    return Table(model=Call("mw.llama", Table(layers=2, hidden=8, heads=4, vocab=16, ffn=8)), data=Call("mw.synthetic", Table()),
                 sequence=8, plan=Table(*plan), batch=4, optimizer=Call("mw.sgd", Table(lr=0.1)), steps=1, **more)


class Experiments(ProgramCase):
    def check(self, seed, count, each):
        """None fails, more than half of them are accepted, and so are so many of each form."""
        began, session = time.monotonic(), Session(seed, FAILED, 60)
        tally = session.run(range(count), 2)
        print(tally.text(time.monotonic() - began))
        self.assertEqual(tally.kinds["failed"], 0, "experiments failed: see above")
        self.assertGreater(tally.kinds["accepted"], count / 2)
        rare = {form: tally.forms.get(form, {}).get("accepted", 0) for form in FORMS}
        self.assertEqual({form: number for form, number in rare.items() if number < each}, {}, "forms that hardly any have")

    def test_some(self):
        self.check(1, 200, 5)

    @matrix
    def test_many(self):
        seed, count = (int(word) for word in os.environ.get("MESHWRIGHT_EXPERIMENTS", "2 5000").split())
        self.check(seed, count, 8 if count >= 400 else 0)

    def test_what_was_found_stays_mended(self):
        scripts = sorted((HERE / "found").glob("*.lua"))
        self.assertTrue(scripts)
        for path in scripts:
            with self.subTest(path.name):
                done = self.call("run", path, "--plugin-path", TEST_PLUGINS)
                self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])


class Failures(ProgramCase):
    """What the judge must see, and what becomes of it."""

    def judge(self, keys, verbs=("prove", "verify", "train"), **more):
        worker = Worker()
        self.addCleanup(worker.end)
        return judged(worker.run(keys, verbs=verbs, **more), keys)

    def test_accepted_and_refused(self):
        self.assertEqual(self.judge(plain(Call("tp", Table(2)))).what, "equal")
        refused = self.judge(plain(Call("tp", Table(3))))
        self.assertEqual((refused.kind, refused.what), ("refused", "axis.cannot-split"))

    def test_a_fault_that_a_pass_makes(self):
        fault = Call('mw.plugins("faults")', Table("missing_gradient_reduction"))
        keys = plain(Call("dp", Table(2)), Call("tp", Table(2, overlap=True)), fault, microbatch=1, recompute="full")
        found = self.judge(keys)
        self.assertEqual((found.kind, found.what[:12]), ("failed", "prove: prove"))
        worker = Worker(UNPROVED)
        self.addCleanup(worker.end)
        wrong = judged(worker.run(keys, verbs=("verify",)), keys)
        self.assertEqual((wrong.kind, wrong.what), ("failed", "verify: different"))
        small, tried = shrunk(worker, keys, wrong, ("verify",))
        text = render(small)
        print(f"smaller by {len(render(keys)) - len(text)} characters after {tried} tries: {text}")
        self.assertIn("missing_gradient_reduction", text)
        for gone in ("tp", "recompute", "overlap", "microbatch"):
            self.assertNotIn(gone, text)
        self.assertIn("layers = 1", text)

    def test_an_end_of_the_process(self):
        killed = self.judge(plain(Raw('os.execute("kill -SEGV $PPID")')))
        self.assertEqual((killed.kind, killed.what), ("failed", "ends its process (signal 11) after begin"))

    def test_a_hang(self):
        found = self.judge(plain(Raw('io.popen("sleep 60"):read()')), limit=3)
        self.assertEqual((found.kind, found.what), ("failed", "hangs after begin"))
        slow = self.judge(plain(Raw("(function() for n = 1, 3e7 do end end)()")), verbs=("prove",), limit=0.01)
        self.assertEqual(slow.kind, "accepted", slow.why)

    def test_errors_of_a_script(self):
        found = self.judge(plain(Raw('error("vector::_M_range_check")')))
        self.assertEqual((found.kind, found.what[:9]), ("failed", "prove: ? "))

    def test_the_command_writes_counts(self):
        path = self.folder / "counts.json"
        command = [sys.executable, HERE / "experiments.py", "--seed", "3"]
        run = lambda *more: subprocess.run([*command, *more], cwd=self.folder, capture_output=True, text=True, timeout=900)
        done = run("--count", "6", "--jobs", "1", "--json", path)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        counts = json.loads(path.read_text())
        self.assertEqual((counts["experiments"], counts["accepted"] + counts["refused"]), (6, 6))
        one = [run("--only", "4", "--show").stdout.split("experiments in")[0] for _ in range(2)]
        self.assertIn("model = ", one[0])
        self.assertEqual(one[0], one[1])

    def test_the_commands_of_the_page_are_taken(self):
        blocks = [text for language, text in pages.blocks(pages.part("trust", "How we test")) if language == "sh"]
        block, = (one for one in blocks if "tests/fuzz/" not in one)  # which tests/fuzz/test_fuzz.py takes
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            self.assertEqual(words[0], "tests/experiments/experiments.py")
            self.assertEqual(options(words[1:]).seed, 7)

    def test_schedules_that_wait_for_each_other(self):
        forward, back = [("F", 0, 0)], [("B", 0, 0)]
        there, home = [("F", 1, 0)], [("B", 1, 0)]
        self.assertTrue(comes_to_an_end([[forward, back], [there, home]], 1))
        self.assertFalse(comes_to_an_end([[back, forward], [there, home]], 1))
        self.assertFalse(comes_to_an_end([[forward + back], [there, home]], 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
