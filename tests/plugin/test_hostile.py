"""A plugin that throws anything from anywhere, or asks for what cannot be: one clear error with
its name and the script's line, in plan, run and verify; and what it asks for that can be
computes what one rank does."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BIN = os.environ["MESHWRIGHT_BIN"]
FOLDER = os.environ["MESHWRIGHT_TEST_PLUGINS"]

# Each case is its own mw.train, so that one process tries many: pcall says what it threw.
SCRIPT = """\
local mw = require "meshwright"
local hostile, dp, tp = mw.plugins("hostile", "dp", "tp")
local function experiment(plan)
  return {
    model = mw.%s { layers = 2, hidden = 8, heads = 2, ffn = 8, vocab = 10%s },
    data = mw.synthetic { seed = 1, sequence = 8 }, plan = plan, batch = 4,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 2, timeout = 20,
  }
end
"""
MOE = SCRIPT % ("moe", ", experts = 4, top_k = 2")
LLAMA = SCRIPT % ("llama", "")

THROWN = {"integer": "the integer 42", "text": '"a text"', "letters": '"letters"', "null": "a null pointer",
          "other": "a value of type (anonymous namespace)::Other", "bytes": "not \\xff\\x01 text",
          "exception": "an exception"}
PLACES = ["constructor", "axes", "edit", "where", "where of storage", "pass", "schedule", "hook", "hook.name",
          "hook.cost"]
# What is done wrong: the problem's code.
REFUSED = {
    "negative ways": "axis.ways", "no ways": "axis.ways", "huge ways": "axis.ways", "no name": "axis.name",
    "bytes as name": "axis.name", "long name": "axis.name", "overflow": "plan.ranks", "one axis twice": "axis.twice",
    "borrows from nobody": "axis.unknown", "no rule": "axis.idle", "no such dim": "rule.dim",
    "no such axis": "axis.unknown", "bytes as dim": "rule.dim", "divides no axis": "axis.unknown",
    "twice": "rule.twice", "where nothing": "rule.matches-nothing", "where without the dim": "rule.matches-nothing",
    "no such atom": "axis.atom", "stores no dim": "rule.dim", "stores nothing": "storage.matches-nothing",
    "rotates nothing": "rotation.matches-nothing", "arranges too little": "order.ranges",
    "arranges one twice": "order.ranges", "arranges no dim": "rule.dim", "stages on no axis": "axis.unknown",
    "stages beyond": "pipeline.stages", "stages of too few layers": "pipeline.layers",
    "no schedule": "pipeline.schedule", "an empty pass": "pass.empty", "a pass of no axis": "axis.unknown",
    "layers": "rule.dim", "a pass for no sums": "pass.axis", "refuse": "hostile.dislikes",
}


class Hostile(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def call(self, command, text, *more):
        script = self.folder / "script.lua"
        script.write_text(text)
        done = subprocess.run([BIN, command, script, "--plugin-path", FOLDER, "--json", *more], cwd=self.folder,
                              capture_output=True, text=True, timeout=120)
        return done, [json.loads(line) for line in done.stdout.splitlines()]

    def messages(self, verb, cases, model=MOE):
        """What each plan of a list of Lua texts is refused with, the first problem: code, key, line, words."""
        text = model + "".join(
            f"do local ok, e = pcall(mw.{verb}, experiment {{ {case} }}) "
            f'local p = ok and {{}} or e.problems[1] '
            f'print(table.concat({{ p.code, p.key, tostring(p.line), p.message .. " [" .. p.hint .. "]" }}, "\\1") .. "\\0") end\n'
            for case in cases)
        script = self.folder / "script.lua"
        script.write_text(text)
        done = subprocess.run([BIN, "run", script, "--plugin-path", FOLDER], cwd=self.folder, capture_output=True,
                              text=True, errors="strict", timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        said = [each.strip("\n").split("\1") for each in done.stdout.split("\0")[:-1]]
        self.assertEqual(len(said), len(cases), done.stdout[-2000:])
        return said

    def check(self, said, case, code, line, thrown=""):
        """On the plugin's entry, by its name."""
        with self.subTest(case):
            self.assertEqual(said[:3], [code, "plan[1]", str(line)])
            self.assertIn("hostile", said[3])
            self.assertIn(thrown, said[3])

    def test_what_is_thrown_names_the_plugin_and_the_line(self):
        first = len(MOE.splitlines()) + 1
        cases = [(at, what) for at in PLACES for what in THROWN]
        plans = [f'hostile {{ 2, at = "{at}", what = "{what}" }}' for at, what in cases]
        for verb in ("plan", "verify"):
            for number, said in enumerate(self.messages(verb, plans)):
                at, what = cases[number]
                self.check(said, f"{verb}: {what} in {at}", "plugin.fault", first + number, THROWN[what])

    def test_an_error_keeps_its_words(self):
        first = len(MOE.splitlines()) + 1
        plans = [f'hostile {{ 2, at = "{at}", what = "error" }}' for at in PLACES]
        for number, said in enumerate(self.messages("plan", plans)):
            self.check(said, PLACES[number], "hostile.own", first + number, "an error of its own [a hint of its own]")

    def test_what_cannot_be_is_refused_with_what_there_is(self):
        first = len(MOE.splitlines()) + 1
        for verb in ("plan", "train", "verify"):
            plans = [f'hostile {{ 2, at = "{at}" }}' for at in REFUSED]
            for number, (said, at) in enumerate(zip(self.messages(verb, plans), REFUSED, strict=True)):
                self.check(said, f"{verb}: {at}", REFUSED[at], first + number)

    def test_what_can_be_equals_one_rank(self):
        """Rules of any dim: equal to one rank, or refused by name; never another answer."""
        dims = ["nowhere", "hidden", "seq", "experts", "head_dim", "all"]
        text = MOE + "".join(
            f'do local ok, r = pcall(mw.verify, experiment {{ hostile {{ 2, at = "{at}" }} }}) '
            f'print("{at}: " .. (ok and r.verdict or tostring(r))) end\n' for at in dims)
        done, _ = self.call("run", text)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        verdicts = dict(line.split(": ", 1) for line in done.stderr.splitlines()
                        if line.split(": ")[0] in dims)
        self.assertEqual(set(verdicts), set(dims))
        for at, verdict in verdicts.items():
            with self.subTest(at):
                self.assertTrue(verdict == "equal" or "hostile" in verdict, verdict)
        for at in ("nowhere", "seq", "experts", "all"):
            self.assertEqual(verdicts[at], "equal", at)

    def test_two_plugins_that_clash_are_both_named(self):
        said, = self.messages("plan", ['dp(2), hostile { 2, at = "the axis of dp" }'])
        self.assertEqual(said[:2], ["axis.twice", "plan[2]"])
        self.assertIn("so does dp (plan[1])", said[3])
        too_many, twice = self.messages(
            "plan", [f'dp(2), hostile {{ 2, at = "{at}" }}' for at in ("borrows too many", "borrows one twice")])
        for said in (too_many, twice):
            self.assertEqual(said[:2], ["axis.cannot-borrow", "plan[2].ways"])

    def test_exit_codes(self):
        for at, code in (("edit", 3), ("constructor", 3), ("no such dim", 3), ("where", 3), ("nowhere", 0)):
            for command in ("plan", "run", "verify"):
                text = LLAMA + f'mw.train(experiment {{ hostile {{ 2, at = "{at}", what = "integer" }} }})\n'
                done, lines = self.call(command, text)
                self.assertEqual(done.returncode, code, f"{command} {at}: {done.stderr[-1000:]}")
                errors = [line for line in lines if line["kind"] == "error"]
                self.assertEqual(len(errors), 1 if code else 0, errors)

    def test_a_hook_that_throws_in_a_rank_ends_the_run(self):
        for at in ("hook.make", "hook.start", "hook.finish", "hook.nothing"):
            text = LLAMA + f'mw.train(experiment {{ hostile {{ 2, at = "{at}", what = "integer" }} }})\n'
            done, lines = self.call("run", text)
            self.assertEqual(done.returncode, 1, done.stderr[-1000:])
            error, = [line for line in lines if line["kind"] == "error"]
            self.assertEqual((error["code"], error["key"]), ("plugin.fault", "plan[1]"))
            self.assertIn("hostile", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
