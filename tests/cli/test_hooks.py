"""dp's hooks from a script: what is sent, what a function of the script may choose, what is
refused."""

import unittest

from cases import ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")
local function train(plan)
  return mw.train {
    model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 }, data = mw.synthetic {},
    sequence = 16, plan = plan, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
  }
end
"""


class Hooks(ProgramCase):
    def sent(self, *options):
        """For each of dp's options the calls and bytes of the gradients, predicted and measured alike."""
        runs = self.all("run", self.write(HEAD + "".join(f"train {{ dp {{ 2, {o} }} }}\n" for o in options)))
        for run in runs:
            self.sent_as_predicted(run)
        return [next((c["calls"], c["bytes"]) for c in run["communication"] if c["phase"] == "gradients") for run in runs]

    def test_bytes(self):
        (calls, plain), bf16, (few_calls, few), (_, more), each = self.sent(
            'hook = "none"', 'hook = "bf16"', 'hook = dp.powersgd(1)', 'hook = "powersgd"', 'reduce = "each"')
        self.assertEqual(bf16, (calls, plain // 2))
        self.assertEqual(few_calls, 2 * calls)
        self.assertLess(few, plain // 4)
        self.assertLess(few, more)
        self.assertEqual(each, (4 * calls, 4 * plain))

    def test_a_function_chooses_for_each_bucket(self):
        # The embedding, the output projection and the feed-forward's matrices are those
        # over 5000 bytes.
        (calls, plain), half, (some_calls, some) = self.sent(
            'bucket = "4KiB"', 'bucket = "4KiB", hook = function() return "bf16" end',
            'bucket = "4KiB", hook = function(b) '
            'assert(b.ways == 2 and #b.parameters > 0 and b.parameters[1]:find("weight") and b.name) '
            'return b.bytes > 5000 and "bf16" or "none" end')
        self.assertEqual(half, (calls, plain // 2))
        self.assertEqual(some_calls, calls)
        self.assertEqual(plain - some, (2 * 256 * 32 + 3 * 64 * 32) * 4 // 2)

    def test_refusals(self):
        self.all_refused(HEAD, *((f"train {{ {plan} }}", code, problem) for plan, code, problem in (
            ('dp { 2, hook = "bf61" }', 2, "option.choice plan[1].hook"),
            ("dp { 2, hook = 3 }", 2, "option.choice plan[1].hook"),
            ("dp { 2, hook = dp.powersgd { rank = 0 } }", 2, "option.range plan[1].hook.rank"),
            ('dp { 2, reduce = "all" }', 2, "option.choice plan[1].reduce"),
            ('dp { 2, reduce = "each", hook = "bf16" }', 2, "option.conflict plan[1].reduce"),
            ("dp { 2, hook = function() end }", 3, "function.result plan[1].hook"),
            ("dp { 2, hook = function() return 7 end }", 3, "function.result plan[1].hook"),
            ('dp { 2, hook = function() error("no hook today") end }', 2, "script.error"),
            ('dp { 2, hook = "bf16" }, zero { 2, stage = 2 }', 3, "hook.parts plan"),
            ('dp { 2, reduce = "each" }, zero { 2, stage = 3 }', 3, "hook.parts plan"),
        )))

    def test_verify_refuses_choices_by_bytes_that_float64_makes_otherwise(self):
        text = HEAD + """
            local plan = { dp { 2, hook = function(b) return b.bytes > 160000 and "bf16" or "none" end }, zero { 2, stage = 2 } }
            local experiment = { model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 },
              data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8, optimizer = mw.adamw { lr = 1e-2 }, steps = 1,
              precision = "%s" }
            assert(mw.prove(experiment).verdict == "proved")
            mw.verify(experiment)
            """
        done = self.call("run", self.write(text % "bf16"), "--json")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(problems(self.lines(done)), ["plan.float64 plan"])
        self.assertEqual(self.all("run", self.write(text % "fp32"))[-1]["verdict"], "equal")


if __name__ == "__main__":
    unittest.main(verbosity=2)
