"""A strategy that stands twice in a plan, whatever it asks for, is refused once, by name."""
import unittest

from cases import MODELS, ProgramCase

TWICE = {
    "tp(2), sp(), sp()": "plan.twice plan[3]",
    "dp(2), dp(2)": "axis.twice plan[2]",
    "zero(2), zero { 2, stage = 3 }": "axis.twice plan[2]",
    "tp(2), tp(2)": "axis.twice plan[2]",
    "sp(2), sp(2)": "axis.twice plan[2]",
    "pp(2), pp(2)": "axis.twice plan[2]",
    "dp(4), ep(2), ep(2)": "axis.twice plan[3]",
}
# Each once: accepted.
ONCE = ["tp(2), sp(), sp(2)", "dp(2), zero(2), tp(2)", "dp(1), tp(1), sp()", "dp(2), ep(1)", "zero { 4, replicas = 2 }",
        "sp(2), dp(2), tp(2), ep(4)", "pp(2), dp(2), ep(2)", "pp(1), dp(1), zero(1), tp(1), sp(1), ep(1)",
        "zero { 4, stage = 3, replicas = 2 }, ep { 2, dispatch = \"allgather\" }", "sp { 4, ulysses = 2 }"]
HEAD = MODELS + """
local function plan(entries)
  return mw.plan { model = models.moe, data = mw.synthetic {}, sequence = 16, plan = entries, batch = 16,
                   optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
end
"""


class Twice(ProgramCase):
    def test_each_form(self):
        self.all_refused(HEAD, *((f"plan {{ {plan} }}", 3, problem) for plan, problem in TWICE.items()))

    def test_what_stands_once_is_taken(self):
        self.assertEqual(len(self.all("run", self.write(HEAD + "".join(f"plan {{ {plan} }}\n" for plan in ONCE)))), len(ONCE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
