"""A plugin that throws anything from anywhere, or asks for what cannot be: one clear error with its name and the
script's line, in plan, run and verify; and what it asks for that can be computes what one rank does."""
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
# What is done wrong: what the message must say.
REFUSED = {
    "negative ways": ["the axis b of -3 ways", "1 to 16777216"],
    "no ways": ["the axis b of 0 ways"],
    "huge ways": ["the axis b of 2147483647 ways"],
    "no name": ['an axis named ""'],
    "bytes as name": ['an axis named "x"', "\\xff"],
    "long name": ["an axis named", "64 at most"],
    "overflow": ["18446744073709551616 ranks", "16777216 at most"],
    "one axis twice": ["the axis b twice"],
    "borrows from nobody": ["nobody", "none of these axes"],
    "no rule": ["nothing lives on the axis b (2 ranks)", "dims: batch"],
    "no such dim": ['"bacth"', 'did you mean "batch"?', "dims: batch, "],
    "no such axis": ['"bb"', 'did you mean "b"?', "axes: b"],
    "bytes as dim": ["\\xff"],
    "divides no axis": ["the mesh has no axis bb", "its axes are b"],
    "twice": ["batch -> b is said twice"],
    "where nothing": ["batch -> b is for particular ops, and its `where` takes none", "kinds of ops with batch: "],
    "where without the dim": ["(attention), none of which computes over vocab", "embedding"],
    "no such atom": ["atom 7", "the atoms of b are 0"],
    "stores no dim": ['"hiden"', 'did you mean "hidden"?'],
    "stores nothing": ["stored sharded along hidden on b", "parameters with hidden: "],
    "rotates nothing": ["lets keys go round b", "attention"],
    "arranges too little": ['order of "seq"', "8 elements"],
    "arranges one twice": ['order of "seq"'],
    "arranges no dim": ['"sqe"', 'did you mean "seq"?'],
    "stages on no axis": ['"ppp"', "axes: b"],
    "stages beyond": ["0, 7", "2 stages"],
    "stages of too few layers": ["1 + 7", "the model has 2"],
    "no schedule": ["no schedule"],
    "an empty pass": ['"empty"'],
    "a pass of no axis": ['"bb"', "axes: b"],
    "layers": ['"layers"', "Draft::pipeline"],
    "a pass for no sums": ["sums of gradients over b"],
    "refuse": ["it does not like the plan", "leave it out"],
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
        """What each plan of a list of Lua texts is refused with; "accepted" if it is not."""
        text = model + "".join(
            f"do local ok, e = pcall(mw.{verb}, experiment {{ {case} }}) "
            f'print(string.format("%q", ok and "accepted" or tostring(e)):gsub("\\\\\\n", " ") .. "\\0") end\n'
            for case in cases)
        script = self.folder / "script.lua"
        script.write_text(text)
        done = subprocess.run([BIN, "run", script, "--plugin-path", FOLDER], cwd=self.folder, capture_output=True,
                              text=True, errors="strict", timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        said = done.stdout.split("\0")[:-1]
        self.assertEqual(len(said), len(cases), done.stdout[-2000:])
        return said

    def check(self, said, case, fragments, line):
        with self.subTest(case):
            for fragment in [*fragments, "hostile", f"script.lua:{line}: plan[1]"]:
                self.assertIn(fragment, said.replace('\\"', '"').replace("\\\\", "\\"))

    def test_what_is_thrown_names_the_plugin_and_the_line(self):
        first = len(MOE.splitlines()) + 1
        cases = [(at, what) for at in PLACES for what in THROWN]
        plans = [f'hostile {{ 2, at = "{at}", what = "{what}" }}' for at, what in cases]
        for verb in ("plan", "verify"):
            for number, said in enumerate(self.messages(verb, plans)):
                at, what = cases[number]
                self.check(said, f"{verb}: {what} in {at}", [THROWN[what], "mend the plugin"], first + number)

    def test_an_error_keeps_its_words(self):
        first = len(MOE.splitlines()) + 1
        plans = [f'hostile {{ 2, at = "{at}", what = "error" }}' for at in PLACES]
        for number, said in enumerate(self.messages("plan", plans)):
            self.check(said, PLACES[number], ["an error of its own", "a hint of its own"], first + number)

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
        for fragment in ("hostile", "the axis dp", "so does dp (plan[1])", "plan[2]"):
            self.assertIn(fragment, said)
        too_many, twice = self.messages(
            "plan", [f'dp(2), hostile {{ 2, at = "{at}" }}' for at in ("borrows too many", "borrows one twice")])
        self.assertIn("hostile: b(7) cannot borrow ranks of dp (2 ranks)", too_many)
        self.assertIn("hostile: b(4) cannot borrow ranks of dp", twice)

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
            self.assertIn("hostile", error["message"])
            self.assertIn("On rank", error["message"])
            if at != "hook.nothing":
                self.assertIn("the integer 42", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
