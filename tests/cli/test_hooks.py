"""dp's hooks from a script: what is sent, what a function of the script may choose, what is
refused."""

import unittest

from cases import ProgramCase
from problems import problems

SCRIPT = """\
local mw = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")
mw.train {
  model = mw.llama { layers = 1, hidden = 32, heads = 4, ffn = 64, vocab = 256 }, data = mw.synthetic {},
  sequence = 16, plan = { %s }, batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
"""
GRADIENTS = ("dp", "all-reduce", "gradients")


def book(communication):
    return {(c["axis"], c["op"], c["phase"]): (c["calls"], c["bytes"]) for c in communication}


class Hooks(ProgramCase):
    def run_plan(self, plan):
        done = self.call("run", "--json", self.write(SCRIPT % plan))
        return done, self.lines(done)

    def sent(self, options):
        """Calls and bytes of the gradients, predicted and measured alike."""
        done, lines = self.run_plan(f"dp {{ 2, {options} }}")
        self.assertEqual(done.returncode, 0, done.stderr)
        measured, predicted = book(lines[0]["communication"]), book(lines[0]["predicted"]["communication"])
        self.assertEqual(measured, predicted)
        return measured[GRADIENTS]

    def refused_plan(self, plan, code, problem):
        done, lines = self.run_plan(plan)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(problems(lines), [problem])

    def test_bytes(self):
        calls, plain = self.sent('hook = "none"')
        self.assertEqual(self.sent('hook = "bf16"'), (calls, plain // 2))
        few_calls, few = self.sent('hook = "powersgd", hook_rank = 1')
        self.assertEqual(few_calls, 2 * calls)
        self.assertLess(few, plain // 4)
        self.assertLess(few, self.sent('hook = "powersgd"')[1])
        self.assertEqual(self.sent('reduce = "each"'), (4 * calls, 4 * plain))

    def test_a_function_chooses_for_each_bucket(self):
        calls, plain = self.sent('bucket = "4KiB"')
        self.assertEqual(self.sent('bucket = "4KiB", hook = function() return "bf16" end'), (calls, plain // 2))
        # The embedding, the output projection and the feed-forward's matrices are those
        # over 5000 bytes.
        some_calls, some = self.sent(
            'bucket = "4KiB", hook = function(b) '
            'assert(b.ways == 2 and #b.parameters > 0 and b.parameters[1]:find("weight") and b.name) '
            'return b.bytes > 5000 and "bf16" or "none" end')
        self.assertEqual(some_calls, calls)
        self.assertEqual(plain - some, (2 * 256 * 32 + 3 * 64 * 32) * 4 // 2)

    def test_refusals(self):
        self.refused_plan('dp { 2, hook = "bf61" }', 2, "option.choice plan[1].hook")
        self.refused_plan("dp { 2, hook = 3 }", 2, "option.choice plan[1].hook")
        self.refused_plan('dp { 2, hook = "powersgd", hook_rank = 0 }', 2, "option.range plan[1].hook_rank")
        self.refused_plan('dp { 2, reduce = "all" }', 2, "option.choice plan[1].reduce")
        self.refused_plan('dp { 2, reduce = "each", hook = "bf16" }', 2, "option.conflict plan[1].reduce")
        self.refused_plan("dp { 2, hook = function() end }", 3, "function.result plan[1].hook")
        self.refused_plan("dp { 2, hook = function() return 7 end }", 3, "function.result plan[1].hook")
        self.refused_plan('dp { 2, hook = function() error("no hook today") end }', 2, "script.error")
        self.refused_plan('dp { 2, hook = "bf16" }, zero(2)', 3, "hook.parts plan")
        self.refused_plan('dp { 2, reduce = "each" }, zero { 2, stage = 3 }', 3, "hook.parts plan")


if __name__ == "__main__":
    unittest.main(verbosity=2)
