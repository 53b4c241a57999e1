"""A plugin that throws anything from anywhere, or asks for what cannot be: one clear error with
its name and the script's line, in plan, run and verify; and what it asks for that can be
computes what one rank does."""
import unittest

from cases import TEST_PLUGINS, ProgramCase

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


class Hostile(ProgramCase):
    def messages(self, verb, plans):
        """The first problem of each plan."""
        found = self.tried(MOE, [f"mw.{verb}(experiment {{ {plan} }})" for plan in plans], "--plugin-path", TEST_PLUGINS)
        return [problems[0] for problems in found]

    def check(self, number, said, code, thrown=""):
        """On the plugin's entry, by its name."""
        self.assertEqual((said["code"], said["key"], said["line"]), (code, "plan[1]", MOE.count("\n") + 1 + number))
        self.assertIn("hostile", said["message"])
        self.assertIn(thrown, f'{said["message"]} [{said["hint"]}]')

    def test_what_is_thrown_names_the_plugin_and_the_line(self):
        cases = [(at, what) for at in PLACES for what in THROWN]
        for verb in ("plan", "verify"):
            said = self.messages(verb, [f'hostile {{ 2, at = "{at}", what = "{what}" }}' for at, what in cases])
            for number, (at, what) in enumerate(cases):
                with self.subTest(verb, at=at, what=what):
                    self.check(number, said[number], "plugin.fault", THROWN[what])

    def test_an_error_keeps_its_words(self):
        for number, said in enumerate(self.messages("plan", [f'hostile {{ 2, at = "{at}", what = "error" }}' for at in PLACES])):
            self.check(number, said, "hostile.own", "an error of its own [a hint of its own]")

    def test_what_cannot_be_is_refused_with_what_there_is(self):
        for verb in ("plan", "train", "verify"):
            said = self.messages(verb, [f'hostile {{ 2, at = "{at}" }}' for at in REFUSED])
            for number, at in enumerate(REFUSED):
                with self.subTest(verb, at=at):
                    self.check(number, said[number], REFUSED[at])

    def test_what_can_be_equals_one_rank(self):
        """Rules of any dim: equal to one rank, or refused by name; never another answer."""
        dims = ["nowhere", "hidden", "seq", "experts", "head_dim", "all"]
        text = MOE + "".join(
            f'do local ok, r = pcall(mw.verify, experiment {{ hostile {{ 2, at = "{at}" }} }}) '
            f'print("{at}: " .. (ok and r.verdict or tostring(r))) end\n' for at in dims)
        done = self.call("run", self.write(text), "--plugin-path", TEST_PLUGINS, "--json")
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
        self.assertEqual((said["code"], said["key"]), ("axis.twice", "plan[2]"))
        self.assertIn("so does dp (plan[1])", said["message"] + said["hint"])
        too_many, twice = self.messages(
            "plan", [f'dp(2), hostile {{ 2, at = "{at}" }}' for at in ("borrows too many", "borrows one twice")])
        for said in (too_many, twice):
            self.assertEqual((said["code"], said["key"]), ("axis.cannot-borrow", "plan[2].ways"))

    def ends(self, command, at):
        """Exit code and errors."""
        text = LLAMA + f'mw.train(experiment {{ hostile {{ 2, at = "{at}", what = "integer" }} }})\n'
        done = self.call(command, self.write(text), "--plugin-path", TEST_PLUGINS, "--json")
        return done.returncode, [line for line in self.lines(done) if line["kind"] == "error"]

    def test_exit_codes(self):
        for at, wanted in (("edit", 3), ("constructor", 3), ("no such dim", 3), ("where", 3), ("nowhere", 0)):
            for command in ("plan", "run", "verify"):
                with self.subTest(command, at=at):
                    code, errors = self.ends(command, at)
                    self.assertEqual((code, len(errors)), (wanted, 1 if wanted else 0), errors)

    def test_a_hook_that_throws_in_a_rank_ends_the_run(self):
        for at in ("hook.make", "hook.start", "hook.finish", "hook.nothing"):
            code, (error,) = self.ends("run", at)
            self.assertEqual((code, error["code"], error["key"]), (1, "plugin.fault", "plan[1]"))
            self.assertIn("hostile", error["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
