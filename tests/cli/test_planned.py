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
        self.assertIn("because the embedding and the head cost as much as layers", done.stdout)

    def test_without_a_cluster_the_memory_is_kept(self):
        def plan(pp, memory):
            more = ("model = mw.llama { layers = 8, hidden = 64, heads = 4, ffn = 128, vocab = 64 }, sequence = 64, batch = 16, "
                    "precision = 'fp32', plan = { pp { 4%s } }, memory = %d" % (pp, memory))
            script = self.write(HERE.format(pp="", more=more))
            done = self.call("plan", "--json", script)
            self.assertEqual(done.returncode, 0, done.stderr)
            return {**json.loads(done.stdout.splitlines()[0]), "text": self.call("plan", script).stdout}
        free, even = plan("", 1 << 30), plan(', layout = "even"', 1 << 30)
        self.assertEqual(free["peak_bytes"], even["peak_bytes"])
        limit = int(0.9 * free["peak_bytes"])
        kept = plan("", limit)
        self.assertLessEqual(kept["peak_bytes"], limit)
        self.assertIn("by declared costs and memory", kept["text"])
        told = plan(', layout = "even"', limit)
        self.assertFalse(told["fits"])
        self.assertTrue(told["hint"].startswith('plan = { pp { 4, layout = "auto" } } would fit'), told["hint"])

    def test_more_stages_than_layers(self):
        more = "model = mw.llama { layers = %d, hidden = 64, heads = 4, ffn = 128, vocab = 64 }, sequence = 64, plan = { pp(8) }"
        for layers in (6, 7):
            done = self.call("plan", "--json", self.write(HERE.format(pp="", more=more % layers)))
            self.assertEqual(done.returncode, 0, done.stderr)
            listed = self.plan(more=more % layers)  # on a cluster
            self.assertEqual(len(listed["memory"]), 8)
        refused = self.call("plan", self.write(HERE.format(pp="", more=more % 5)))
        self.assertEqual(refused.returncode, 3)
        self.assertIn("nearest: pp(7)", refused.stderr)

    def test_a_layout_that_gains_nothing_is_not_said(self):
        found = self.plan(more="model = mw.llama { layers = 6, hidden = 2048, heads = 16, ffn = 5632, vocab = 32000 }, plan = { pp(2), tp(4), sp() }")
        self.assertNotIn("by predicted times and memory", found["text"])

    def test_eigenvectors_go_column_by_column(self):
        """Shampoo's roots take 17.5 us a column of a factor on an H100, however few FLOPs they are."""
        model = "model = mw.llama { layers = 2, hidden = 1024, heads = 8, ffn = 2048, vocab = 1024 }, plan = { tp(1) }, batch = 1, "
        shampoo, sgd = (self.plan(more=f"{model} optimizer = mw.{name} {{ lr = 1e-3, momentum = 0.9 }}") for name in ("shampoo", "sgd"))
        columns = 2 * (4 * 2 * 1024 + 3 * (1024 + 2048))
        self.assertAlmostEqual(shampoo["step_seconds"] - sgd["step_seconds"], 17.5e-6 * columns, delta=0.2 * 17.5e-6 * columns)

    def test_numbers_at_the_end_of_their_range(self):
        for name in ("sgd", "muon", "shampoo"):
            told = self.plan(more=f"optimizer = mw.{name} {{ lr = 1e-3, momentum = 1 }}", expect=2)
            self.assertIn("optimizer.momentum must be between 0 and 0.9999; got 1", told)
        self.assertIn("optimizer.eps must be at least 1e-12", self.plan(more="optimizer = mw.shampoo { lr = 1e-3, eps = 1e-30 }", expect=2))
        for kind, ffn in (("llama", "ffn = 128, "), ("gpt", "")):
            sizes = "model = mw.%s { layers = 8, hidden = 64, heads = 4, %svocab = 64, head_dim = %%d }" % (kind, ffn)
            widths = [self.plan(more=sizes % width)["parameters"] for width in (0, 16, 32)]  # 0: hidden / heads
            self.assertEqual(widths[0], widths[1])
            self.assertLess(widths[1], widths[2])

    def test_a_layout_that_is_no_layout(self):
        self.assertIn("plan[1].layout", self.plan(', layout = "evenly"', expect=2))
        self.assertIn('"auto", "even", or a list', self.plan(', layout = "evenly"', expect=2))

    def test_the_stack_that_help_names_is_taken(self):
        said = " ".join(self.call("plan", "--help").stdout.split())
        self.assertIn("fsdp2, …; left out it is plain, without flash attention", said)
        script = self.write(SCRIPT.replace('stack = mw.stack "meshwright", ', "").format(pp="", more=""))
        self.assertIn("stack plain", self.only("plan", script)["priced_for"])

    def test_what_a_training_takes(self):
        found = self.plan(more='tokens = "1.5T", price = 2')
        hours = 1.5e12 / found["tokens_per_second"] / 3600 * 8
        self.assertAlmostEqual(found["device_hours"], hours, delta=1e-6 * hours)
        self.assertAlmostEqual(found["cost"], 2 * hours, delta=1e-6 * hours)
        self.assertIn("on 8 devices", found["text"])
        for written in ("1.5t", "1.5 T", "1500 b"):
            self.assertEqual(self.plan(more=f'tokens = "{written}"')["training_seconds"], found["training_seconds"])
        same = self.plan(more="tokens = 1.5e12")
        self.assertEqual(same["training_seconds"], found["training_seconds"])
        self.assertNotIn("cost", same)
        self.assertEqual(same["plan_hash"], self.plan()["plan_hash"])

    def test_tokens_that_are_no_number(self):
        for wrong in ("many", "1.5 TB", "T", ""):
            self.assertIn("tokens: got", self.plan(more=f'tokens = "{wrong}"', expect=2))
        self.assertIn("price", self.plan(more="price = 2", expect=2))
        done = self.call("plan", self.write(HERE.format(pp="", more='tokens = "1T"')))
        self.assertEqual(done.returncode, 2)
        self.assertIn("tokens are of a training on a cluster", done.stderr)


if __name__ == "__main__":
    unittest.main()
