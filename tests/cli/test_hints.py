"""What a refusal offers as the nearest choice is taken by the planner, or nothing is offered."""

import re
import unittest

from cases import ProgramCase

HEAD = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local models = {
  llama = mw.llama { layers = 5, hidden = 24, heads = 6, kv_heads = 3, ffn = 7, vocab = 17 },
  moe = mw.moe { layers = 5, hidden = 24, heads = 6, ffn = 7, vocab = 17, experts = 6, top_k = 2 },
}
local function try(model, plan)
  local ok, why = pcall(mw.plan, { model = models[model], data = mw.synthetic {}, sequence = 7, plan = plan, batch = 12,
    optimizer = mw.sgd { lr = 1 }, steps = 1 })
  local said = {}
  for _, p in ipairs(ok and {} or why.problems) do table.insert(said, p.code .. " " .. p.key .. " [" .. p.hint .. "]") end
  print("> " .. (ok and "accepted" or table.concat(said, " | ")))
end
"""

# Model, plan, the strategy whose ways are wrong and its place, what is offered.
REFUSED = [
    ("llama", "{ tp(4) }", "tp", 1, "nearest: tp(3), tp(6)"),
    ("llama", "{ tp(7) }", "tp", 1, "nearest: tp(6)"),
    ("llama", '{ tp(4), sp { 2, form = "ulysses" } }', "tp", 1, "nearest: tp(3)"),
    ("llama", '{ tp(4), sp { 4, form = "ulysses" } }', "tp", 1, ""),
    ("llama", "{ dp(2), tp(4), sp() }", "tp", 2, "nearest: tp(3), tp(6)"),
    ("llama", "{ zero { 2, stage = 3 }, sp(8) }", "sp", 2, "nearest: sp(7)"),
    ("llama", '{ pp { 2, schedule = "zbv" }, dp(2), tp { 4, overlap = true } }', "tp", 3, "nearest: tp(3), tp(6)"),
    ("moe", "{ dp(4), ep(4) }", "ep", 2, "nearest: ep(2)"),
    ("moe", "{ dp(3), tp(2), ep(12) }", "ep", 3, "possible: 1, 2, 3, 6"),
    ("moe", "{ dp(4), ep(8) }", "ep", 2, "possible: 1, 2"),
    ("moe", "{ dp(4), tp(3), ep { 4, borrow = { 'dp', 'tp' } } }", "ep", 3, "nearest: ep(3), ep(6)"),
]


class Hints(ProgramCase):
    def other(self, plan, strategy, ways):
        return re.sub(rf"\b{strategy}(\(| {{ )\d+", rf"{strategy}\g<1>{ways}", plan, count=1)

    def answers(self, tried):
        """What the planner says to each of these models and plans."""
        done = self.call("run", self.write(HEAD + "\n".join(f'try("{model}", {plan})' for model, plan in tried)))
        self.assertEqual(done.returncode, 0, done.stderr)
        said = [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]
        self.assertEqual(len(said), len(tried), said)
        return said

    def test_what_is_offered_is_taken(self):
        offered = []
        for (model, plan, strategy, place, hint), said in zip(REFUSED, self.answers([case[:2] for case in REFUSED])):
            with self.subTest(plan):
                code = "axis.cannot-borrow" if "possible" in hint else "axis.cannot-split"
                self.assertTrue(said.startswith(f"{code} plan[{place}].ways [{hint}"), said)
                self.assertNotIn(" | ", said)  # one problem
                self.assertEqual("nearest" in said or "possible" in said, hint != "")
                numbers = re.search(r"(?:nearest|possible): ([^\]]*)", said)
                for ways in re.findall(r"\d+", numbers.group(1)) if numbers else []:
                    offered.append((model, self.other(plan, strategy, ways)))
        self.assertEqual(len(offered), 18)
        for (_, plan), said in zip(offered, self.answers(offered)):
            self.assertTrue(said.startswith("accepted"), f"{plan}: {said}")

    def test_other_problems_do_not_hide_what_is_nearest(self):
        said, = self.answers([("moe", "{ dp(5), tp(4), sp(9) }")])
        self.assertEqual(set(said.split(" | ")), {"batch.uneven batch [nearest: batch = 10 or 15]",
                                                  "axis.cannot-split plan[2].ways [nearest: tp(3), tp(6)]",
                                                  "axis.cannot-split plan[3].ways [nearest: sp(7)]"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
