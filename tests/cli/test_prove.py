"""`meshwright prove` and mw.prove from outside: what is proved and what a refusal tells."""
import unittest

from cases import MODELS, TEST_PLUGINS, ProgramCase

FAULT = """\
local mw = require "meshwright"
local dp, tp, pp = mw.plugins("dp", "tp", "pp")
local faults = mw.plugin "faults"
mw.train {
  model = mw.llama { layers = 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 },
  data = mw.synthetic {}, sequence = 16, plan = { dp(2), tp(2), faults { %s } }, batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-3 }, steps = 2,
}
"""


class Prove(ProgramCase):
    def refused_proof(self, fault, *arguments):
        """The proof of a plan with a fault, and its one refusal."""
        done = self.call("prove", self.write(FAULT % fault), "--json", "--plugin-path", TEST_PLUGINS, *arguments)
        self.assertEqual(done.returncode, 3, done.stdout[-3000:] + done.stderr[-3000:])
        result, = self.lines(done)
        self.assertEqual((result["kind"], result["verdict"]), ("prove", "refused"))
        refusal, = result["refusals"]
        return result, refusal

    def test_a_plan_is_proved(self):
        script = self.script('pp { 2, schedule = "1f1b" }, dp(2), tp(2)')
        proof = self.only("prove", script)
        self.assertEqual((proof["kind"], proof["status"], proof["verdict"]), ("prove", "done", "proved"))
        self.assertEqual((proof["ranks"], proof["stages"], proof["microbatches"]), (8, 2, 2))
        self.assertEqual((proof["refusals"], proof["notes"], proof["strict"]), ([], [], False))
        self.assertGreater(proof["rules"], proof["instructions"])
        self.assertEqual(proof["lemmas"], len(proof["lemma_kinds"]))
        linear = [lemma for lemma in proof["lemma_kinds"] if lemma["kind"] == "linear" and lemma["piece"] == "dgrad"]
        self.assertIn(["batch", "heads"], [lemma["cut"] for lemma in linear])
        self.assertEqual(proof["plan_hash"], self.only("plan", script)["plan_hash"])

    def test_as_text(self):
        done = self.call("prove", self.script("dp(2)"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("proved: 1 stage, ", done.stdout)

    def test_a_sum_that_is_missing(self):
        _, refusal = self.refused_proof('fault = "missing_all_reduce", at = "layers.1.mlp.down"')
        self.assertEqual(refusal["code"], "prove.place")
        self.assertEqual(refusal["axes"], [{"axis": "tp", "needed": "R", "found": "P"}])
        self.assertEqual(refusal["stage"], 0)
        self.assertIn("all-reduce over tp", refusal["mend"])
        self.assertIn("layers.1.mlp.down", refusal["message"])
        # The pass that did it, and the entry of the plan that it is of.
        self.assertEqual(refusal["key"], "plan[3]")
        self.assertIn("fault", refusal["by"])

    def test_a_loss_that_counts_twice(self):
        _, refusal = self.refused_proof('fault = "loss_scale"')
        self.assertEqual(refusal["code"], "prove.gradient")
        self.assertEqual(refusal["twice"], ["the seed of the loss"])
        self.assertGreaterEqual(refusal["microbatch"], 0)

    def test_from_a_script(self):
        """mw.prove returns what it found, and the script goes on; every mw.train is proved under the command."""
        script = self.write(MODELS + """
local function e(plan)
  return { model = models.moe, data = mw.synthetic {}, sequence = 8, plan = plan, batch = 8, microbatch = 2,
           optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
end
local proof = mw.prove(e { zero { 4, stage = 3 }, ep(2) })
print(proof.verdict, #proof.lemma_kinds == proof.lemmas)
mw.train(e { pp { 2, schedule = "zb-h1" }, sp { 2, form = "ring" } })
""")
        done = self.call("prove", script)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("proved\ttrue", done.stdout)
        self.assertEqual([proof["verdict"] for proof in self.all("prove", script)], ["proved", "proved"])

    def test_what_a_script_plans_is_proved(self):
        """It goes on with what it planned."""
        script = self.script("dp(2)", "print(mw.plan(e).ranks)\ndo return end")
        done = self.call("prove", script)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("proved: 1 stage, ", done.stdout)
        proof = self.only("prove", self.script("dp(2)", "mw.plan(e)\ndo return end"))
        self.assertEqual((proof["kind"], proof["verdict"]), ("prove", "proved"))

    def test_every_plan_of_steps_that_differ(self):
        proof = self.only("prove", self.script(
            "dp(2)", "e.microbatch = mw.microbatch.ramp { from = 4, steps = 2 }"))
        self.assertEqual(proof["verdict"], "proved")
        self.assertGreater(proof["plans"], 1)

    def test_strict(self):
        """Where transfers begin only when both sides have come, stages that receive ahead wait for each other."""
        self.assertTrue(self.only("prove", self.script("zero { 2, stage = 2 }, tp(2)"), "--strict")["strict"])
        done = self.call("prove", self.script('pp { 2, schedule = "1f1b" }'), "--json", "--strict")
        self.assertEqual(done.returncode, 3, done.stderr)
        result, = self.lines(done)
        self.assertEqual([refusal["code"] for refusal in result["refusals"]], ["prove.deadlock"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
