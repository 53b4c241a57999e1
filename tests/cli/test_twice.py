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
ACCEPTED = MODELS + """\
for _, plan in ipairs { %s } do
  mw.plan { model = models.moe, data = mw.synthetic {}, sequence = 16, plan = plan, batch = 16,
            optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
end
"""


class Twice(ProgramCase):
    def test_each_form(self):
        for plan, problem in TWICE.items():
            with self.subTest(plan):
                text = MODELS + ("mw.plan { model = models.moe, data = mw.synthetic {}, sequence = 16, batch = 16,\n"
                                 "  optimizer = mw.adamw { lr = 1e-3 }, steps = 1,\n"
                                 f"  plan = {{ {plan} }} }}\n")
                line = len(text.splitlines())
                self.assertEqual(self.refused(3, problem, "plan", self.write(text))["line"], line)

    def test_what_stands_once_is_taken(self):
        plans = ", ".join("{ %s }" % plan for plan in ONCE)
        self.assertEqual(len(self.all("run", self.write(ACCEPTED % plans))), len(ONCE))


if __name__ == "__main__":
    unittest.main(verbosity=2)
