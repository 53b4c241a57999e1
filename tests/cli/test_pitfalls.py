# label: cli
"""Pitfalls that `plan` names, each with the plan that avoids it; mixes as textbooks have them have
none."""

import json
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
        self.names("tp(16) lies on several nodes of 8 devices", "x tp(4)", self.plan("tp(16), sp()", "microbatch = 1"))
        self.names("tp(2) lies on several nodes of 8 devices", "with zero(8) x tp(2)", self.plan("tp(2), zero(8)"))

    def test_fewer_microbatches_than_stages(self):
        self.names("4 microbatches for 8 stages", "pp(4)", self.plan("pp(8), tp(2), sp()", "batch = 4, microbatch = 1"))
        self.names("2 microbatches for 4 stages", "microbatch = ", self.plan("pp(4), zero(4)", "model = small, batch = 64, microbatch = 8"))

    def test_states_kept_whole(self):
        self.names("dp keeps all of the optimizer's state on each rank", "with zero(8) x tp(2)", self.plan("dp(8), tp(2), sp()", "microbatch = 1"))

    def test_experts_over_nodes(self):
        self.names("ep(16) lies on several nodes of 8 devices", "zero(16) x ep(4)", self.plan("zero(16), ep(16)", "model = moe"))

    def test_microbatches_that_fill_no_kernel(self):
        found = self.plan("zero(16)", "model = small, sequence = 512, batch = 512, microbatch = 1")
        self.names("microbatches of 1 sequence do not fill the device's kernels", "microbatch = 4", found)

    def test_software_that_runs_out(self):
        found = self.plan("dp(8), tp(2), sp()", 'microbatch = 1, cluster = mw.cluster("dgx-h100", { nodes = 2, device = { memory = "66GiB" } })',
                          stack="megatron-core")
        self.names("the stack's software would run out of the device", " instead of ", found)

    def test_textbook_mixes_have_none(self):
        for mix, more in (
            ("zero(4), tp(4), sp()", ""),
            ("zero { 16, stage = 3 }", ""),
            ("zero { 16, stage = 3, replicas = 2 }", ""),
            ("pp(2), zero(2), tp(4), sp()", "microbatch = 2"),
            ("pp { 4, schedule = \"interleaved\", chunks = 2 }, zero(2), tp(2), sp()", "microbatch = 2"),
            ("zero(16), ep(8)", "model = moe"),
        ):
            with self.subTest(mix):
                self.assertEqual(self.plan(mix, more), [])


if __name__ == "__main__":
    unittest.main()
