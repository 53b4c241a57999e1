# label: cli
"""What a plan chooses and works out for a cluster: how many layers its stages have, and what a
whole training takes."""

import json
import unittest

from cases import ProgramCase

SCRIPT = """local mw = require "meshwright"
local pp, tp, sp, zero = mw.plugins("pp", "tp", "sp", "zero")
local e = {{ model = mw.llama {{ layers = 16, hidden = 2048, heads = 16, ffn = 5632, vocab = 128000 }},
  data = mw.synthetic {{}}, sequence = 2048, batch = 64, microbatch = 1, precision = "bf16", steps = 1,
  optimizer = mw.adamw {{ lr = 1e-4 }}, cluster = mw.cluster("dgx-h100", {{ nodes = 1 }}),
  stack = mw.stack "meshwright", plan = {{ pp {{ 4{pp} }}, tp(2), sp() }} }}
for key, value in pairs {{ {more} }} do e[key] = value end
mw.plan(e)
"""


# The same without a cluster: for this machine.
HERE = SCRIPT.replace('cluster = mw.cluster("dgx-h100", {{ nodes = 1 }}),\n  stack = mw.stack "meshwright", ', "")


class Planned(ProgramCase):
    def plan(self, pp="", more="", expect=0):
        script = self.write(SCRIPT.format(pp=pp, more=more))
        done = self.call("plan", "--json", script)
        self.assertEqual(done.returncode, expect, done.stderr)
        if expect != 0:
            return done.stderr
        return {**json.loads(done.stdout.splitlines()[0]), "text": self.call("plan", script).stdout}

    def test_stages_cost_alike_with_the_head(self):
        found, even = self.plan(), self.plan(', layout = "even"')
        self.assertLess(found["step_seconds"], 0.9 * even["step_seconds"])
        self.assertRegex(found["text"], r"note    stages of \d+, \d+, \d+, \d+ layers, by predicted times and memory: ")
        self.assertIn("even ones would take ", found["text"])
        self.assertNotIn("layers, by predicted", even["text"])
        # As listed it is the same plan.
        listed = found["text"].split("note    stages of ")[1].split(" layers")[0]
        same = self.plan(", layout = { %s }" % listed)
        self.assertEqual(same["step_seconds"], found["step_seconds"])

    def test_a_limit_of_memory_is_kept(self):
        more = """model = mw.llama { layers = 8, hidden = 2048, heads = 16, ffn = 5632, vocab = 65536 },
          sequence = 8192, plan = { pp(8), zero(4) }, batch = 128, cluster = mw.cluster("dgx-h100", { nodes = 4 })"""
        fastest, limited = self.plan(more=more), self.plan(more=more + ', memory = "7GiB"')
        self.assertGreater(fastest["peak_bytes"], 7 * 2**30)
        self.assertLess(limited["peak_bytes"], 7 * 2**30)
        self.assertGreater(limited["step_seconds"], fastest["step_seconds"])

    def test_without_a_cluster_declared_costs_decide(self):
        done = self.call("plan", self.write(HERE.format(pp="", more="")))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("as its ends cost what layers do", done.stdout)

    def test_a_layout_that_is_no_layout(self):
        self.assertIn("plan[1].layout", self.plan(', layout = "evenly"', expect=2))
        self.assertIn('"auto", "even", or a list', self.plan(', layout = "evenly"', expect=2))

    def test_what_a_training_takes(self):
        found = self.plan(more='tokens = "1.5T", price = 2')
        hours = 1.5e12 / found["tokens_per_second"] / 3600 * 8
        self.assertAlmostEqual(found["device_hours"], hours, delta=1e-6 * hours)
        self.assertAlmostEqual(found["cost"], 2 * hours, delta=1e-6 * hours)
        self.assertIn("on 8 devices", found["text"])
        same = self.plan(more="tokens = 1.5e12")
        self.assertEqual(same["training_seconds"], found["training_seconds"])
        self.assertNotIn("cost", same)
        self.assertEqual(same["plan_hash"], self.plan()["plan_hash"])

    def test_tokens_that_are_no_number(self):
        self.assertIn("tokens: got", self.plan(more='tokens = "many"', expect=2))
        self.assertIn("price", self.plan(more="price = 2", expect=2))
        done = self.call("plan", self.write(HERE.format(pp="", more='tokens = "1T"')))
        self.assertEqual(done.returncode, 2)
        self.assertIn("tokens are of a training on a cluster", done.stderr)


if __name__ == "__main__":
    unittest.main()
