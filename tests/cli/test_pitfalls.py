# label: cli
"""Pitfalls that `plan` names, each with the plan that avoids it; mixes as textbooks have them have
none."""

import json
import re
import unittest

from cases import ProgramCase

SCRIPT = """local mw = require "meshwright"
local pp, tp, sp, zero, dp, ep = mw.plugins("pp", "tp", "sp", "zero", "dp", "ep")
local small = mw.llama {{ layers = 24, hidden = 1024, heads = 16, ffn = 2816, vocab = 32000 }}
local large = mw.llama {{ layers = 32, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 32000 }}
local moe = mw.moe {{ layers = 16, hidden = 2048, heads = 16, ffn = 1408, vocab = 32000, experts = 64, top_k = 6 }}
local e = {{ model = large, data = mw.synthetic {{}}, sequence = 4096, batch = 128, microbatch = 4, precision = "bf16",
  steps = 1, optimizer = mw.adamw {{ lr = 1e-4 }}, cluster = mw.cluster("dgx-h100", {{ nodes = 2 }}),
  stack = mw.stack "{stack}", plan = {{ {plan} }} }}
for key, value in pairs {{ {more} }} do e[key] = value end
print(mw.plan(e))
"""


class Pitfalls(ProgramCase):
    def plan(self, plan, more="", stack="meshwright"):
        script = self.write(SCRIPT.format(plan=plan, more=more, stack=stack))
        shown, told = (self.call("plan", *options, script) for options in ((), ("--json",)))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        lines = [line.strip() for line in shown.stdout.splitlines()]
        found = [line.removeprefix("pitfall ").strip() for line in lines if line.startswith("pitfall ")]
        self.assertEqual(json.loads(told.stdout.splitlines()[0]).get("pitfalls", []), found)
        return found

    def names(self, what, better, found):
        line = next((line for line in found if line.startswith(what)), None)
        self.assertIsNotNone(line, found)
        self.assertIn(better, line)

    def test_tensor_parallelism_over_nodes(self):
        self.names("tp(16) spans several nodes of 8 devices", "tp(4) }", self.plan("tp(16), sp()", "microbatch = 1"))
        self.names("tp(2) spans several nodes of 8 devices", "with plan = { zero { 8, stage = 1 }, tp(2) }", self.plan("tp(2), zero(8)"))

    def test_fewer_microbatches_than_stages(self):
        self.names("4 microbatches for 8 stages", "pp(4)", self.plan("pp(8), tp(2), sp()", "batch = 4, microbatch = 1"))
        self.names("2 microbatches for 4 stages", "microbatch = ", self.plan("pp(4), zero(4)", "model = small, batch = 64, microbatch = 8"))

    def test_states_kept_whole(self):
        self.names("dp keeps all of the optimizer's state on each rank", "with plan = { zero { 8, stage = 1 }, tp(2), sp() }",
                   self.plan("dp(8), tp(2), sp()", "microbatch = 1"))

    def test_experts_over_nodes(self):
        self.names("ep(16) spans several nodes of 8 devices", "plan = { zero { 16, stage = 1 }, ep(4) }", self.plan("zero(16), ep(16)", "model = moe"))

    def test_microbatches_that_fill_no_kernel(self):
        found = self.plan("zero(16)", "model = small, sequence = 512, batch = 512, microbatch = 1")
        self.names("microbatches of 1 sequence do not fill the device's kernels", "microbatch = 4", found)

    def test_software_that_runs_out(self):
        found = self.plan("dp(8), tp(2), sp()", 'microbatch = 1, cluster = mw.cluster("dgx-h100", { nodes = 2, device = { memory = "66GiB" } })',
                          stack="megatron-core")
        self.names("the stack's software would run out of the device", " instead of ", found)

    def test_a_plan_that_does_not_fit(self):
        found = self.plan("dp(16)", "microbatch = 1")
        self.names("a rank holds 125 GiB of the 80 GiB that a device has", "plan = { zero { 16, stage = 1 } }", found)
        # Nothing helps a model of 90 billion parameters on two devices.
        lost = self.plan("tp(2)", "model = mw.llama { layers = 80, hidden = 9216, heads = 72, ffn = 32768, vocab = 32000 }, "
                                  'microbatch = 1, cluster = mw.cluster("dgx-h100", { nodes = 1, node = { devices = 2 } })')
        self.names("a rank holds ", "tensor parallelism of more ranks; the lowest is plan = {", lost)

    def test_stages_whose_layers_are_given(self):
        head = "model = mw.llama { layers = 16, hidden = 2048, heads = 16, ffn = 5632, vocab = 256000 }, batch = 64, microbatch = 1"
        for layout in ('"even"', "{ 2, 2, 2, 2, 2, 2, 2, 2 }"):
            found = self.plan("pp { 8, layout = %s }, tp(2), sp()" % layout, head)
            self.names("the layout of stages is given", 'plan = { pp { 8, layout = "auto" }, tp(2), sp() }', found)
        self.assertFalse([line for line in self.plan("pp(8), tp(2), sp()", head) if "layout" in line])

    def test_what_is_named_takes_so_long_where_it_is_pasted(self):
        head = "model = mw.llama { layers = 16, hidden = 2048, heads = 16, ffn = 5632, vocab = 256000 }, "
        line = next(line for line in self.plan("pp(8), tp(2), sp()", head + "batch = 4, microbatch = 1") if "microbatches for" in line)
        step, plan, more = re.search(r"and (\S+ m?s) with plan = \{ (.*) \}(?:, (microbatch = \d+))?$", line).groups()
        self.assertIn("pp(4)", plan)
        script = self.write(SCRIPT.format(plan=plan, more=head + "batch = 4, " + (more or "microbatch = 1"), stack="meshwright"))
        told = json.loads(self.call("plan", "--json", script).stdout.splitlines()[0])
        number, unit = step.split()
        self.assertAlmostEqual(told["step_seconds"], float(number) * {"s": 1, "ms": 1e-3}[unit], delta=0.005 * told["step_seconds"])

    def test_textbook_mixes_have_none(self):
        for mix, more in (
            ("zero(4), tp(4), sp()", ""),
            ("zero { 16, stage = 3 }", ""),
            ("zero { 16, stage = 3, replicas = 2 }", "microbatch = 2"),
            ("pp(2), zero(2), tp(4), sp()", "microbatch = 2"),
            ("pp { 4, schedule = \"interleaved\", chunks = 2 }, zero(2), tp(2), sp()", "microbatch = 2"),
            ("zero(16), ep(8)", "model = moe"),
        ):
            with self.subTest(mix):
                self.assertEqual(self.plan(mix, more), [])


if __name__ == "__main__":
    unittest.main()
