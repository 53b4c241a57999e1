"""mw.compare: correct mixes are equal within the measured bound, in fp32, bf16 and fp64 and
between precisions; five injected faults are not, in fp32 and in bf16, and the op or the
parameter is named; what cannot be compared is refused. Prints how near correct mixes come to the
bound, and how far beyond it the faults are."""

import json
import signal
import subprocess
import time
import unittest

from cases import BIN, SOURCE, TEST_PLUGINS, ProgramCase, matrix
from problems import problems

MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local models = {
  llama = mw.llama { layers = 2, hidden = 48, heads = 4, kv_heads = 2, ffn = 80, vocab = 64 },
  gpt = mw.gpt { layers = 2, hidden = 48, heads = 4, vocab = 64, tied = true },
  deep = mw.llama { layers = 12, hidden = 32, heads = 4, kv_heads = 2, ffn = 48, vocab = 64 },
  moe = mw.moe { layers = 2, hidden = 48, heads = 4, kv_heads = 2, ffn = 40, vocab = 64, experts = 4, top_k = 2 },
}
local function e(model, plan, changes)
  local table = { model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8,
    optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2, threads = 1 }
  for key, value in pairs(changes or {}) do table[key] = value end
  return table
end
"""

PRODUCT = MODELS + """
local mixes = {
  { plan = {}, microbatch = 1 }, { plan = { dp(4) }, microbatch = 1 },
  { plan = { dp { 2, bucket = "8KiB" }, tp(2) }, microbatch = 2, recompute = "full" },
  { plan = { tp(4), sp() }, microbatch = 2 }, { plan = { sp(2) } }, { plan = { sp { 2, form = "ulysses" }, dp(2) } },
  { plan = { zero { 4, stage = 1 } } }, { plan = { zero { 2, stage = 3 }, tp(2) }, microbatch = 1 },
  { plan = { pp { 2, schedule = "zb-h1" }, dp(2) }, microbatch = 1 },
  { plan = { pp { 2, schedule = "1f1b" }, zero { 2, stage = 2 } }, microbatch = 1, recompute = "selective" },
}
for _, model in ipairs { "llama", "gpt" } do
  for _, precision in ipairs { "fp32", "bf16" } do
    for _, mix in ipairs(mixes) do
      mw.compare(e(model, {}, { precision = precision }),
                 e(model, mix.plan, { microbatch = mix.microbatch, recompute = mix.recompute, precision = precision }))
    end
  end
end
"""

SOME = MODELS + """
for _, precision in ipairs { "fp32", "bf16" } do
  mw.compare(e("deep", { dp(2) }, { precision = precision }), e("deep", { tp(2) }, { microbatch = 2, precision = precision }))
  mw.compare(e("moe", {}, { precision = precision }), e("moe", { dp(2), tp(2), ep(4) }, { microbatch = 1, precision = precision }))
end
mw.compare(e("llama", { tp(2) }, { precision = "fp32" }), e("llama", { tp(2) }, { precision = "bf16" }))
mw.compare(e("deep", { dp(2) }, { precision = "bf16", main_gradients = "fp32" }), e("deep", { tp(2) }, { precision = "fp64" }))
mw.compare(e("llama", { tp(2) }, { precision = "fp64" }), e("llama", { dp(2) }, { precision = "fp64", microbatch = 2 }))
mw.compare(e("llama", { dp(2) }), e("llama", { tp(2) }, { precision = "fp16", microbatch = 3 }))
mw.compare(e("gpt", {}), e("gpt", { pp(2), dp(2) }, { microbatch = { 2, 1, 1 } }))
for _, precision in ipairs { "fp32", "bf16" } do
  mw.compare(e("llama", { dp(2) }, { optimizer = mw.muon { lr = 0.02 }, precision = precision }),
             e("llama", { zero { 2, stage = 3 }, tp(2) }, { optimizer = mw.muon { lr = 0.02 }, precision = precision, microbatch = 1 }))
end
"""

# Each: the model, the plan that is right, where the fault is added, and what must be named.
FAULT = MODELS + """
local faults = mw.plugin "faults"
local plan = { %(plan)s }
local changes = { precision = "%(precision)s", microbatch = 2 }
local broken = { %(plan)s, faults { "%(fault)s", at = "%(at)s" } }
mw.compare(e("%(model)s", plan, changes), e("%(model)s", broken, changes))
"""


class Compare(ProgramCase):
    def compare(self, text, code=0):
        done = self.call("run", self.write(text), "--json", "--plugin-path", TEST_PLUGINS)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return self.lines(done)

    def equal(self, text, count):
        results = self.compare(text)
        self.assertEqual(len(results), count)
        most = {}
        for r in results:
            with self.subTest(a=r["a"], b=r["b"], precision=r["precision"]):
                self.assertEqual((r["kind"], r["verdict"], r["steps"]), ("compare", "equal", 2), r["divergence"])
                self.assertIsNone(r["first_divergence"])
                self.assertFalse(r["both_off"])
                reported = [s["error"] / s["bound"] for s in r["reported"].values()]
                # Not by chance: what is right stays well below its bound.
                self.assertLess(max(r["bound_ratio"], *reported), 0.75, r["nearest"])
                key = " and ".join(sorted(set(r["precision"])))
                most[key] = max(most.get(key, 0), r["bound_ratio"], *reported)
        print("largest error over its bound:", ", ".join(f"{key} {ratio:.2g}" for key, ratio in most.items()))

    def test_correct_mixes_are_equal(self):
        self.equal(SOME, 11)

    @matrix
    def test_correct_mixes_of_each_model_and_precision_are_equal(self):
        self.equal(PRODUCT, 40)

    def test_embeddings_that_two_stages_tie(self):
        # Stages are not at the same step: each reads what it has itself.
        # Many times, as it is a matter of timing.
        results = self.compare(MODELS + """
for i = 1, 3 do
  for _, schedule in ipairs { "1f1b", "gpipe" } do
    for _, precision in ipairs { "fp32", "bf16" } do
      mw.compare(e("gpt", {}, { precision = precision }),
                 e("gpt", { pp { 2, schedule = schedule } }, { microbatch = { 6, 2 }, precision = precision }))
    end
  end
end""")
        self.assertEqual([r["divergence"] for r in results if r["verdict"] != "equal"], [])
        self.assertEqual(len(results), 12)

    def fault(self, fault, at, plan, op, model="llama", parameter=None, what=None):
        """In both precisions: different, exit 1, that op, and b the one that is off."""
        for precision in ("fp32", "bf16"):
            with self.subTest(fault=fault, precision=precision, model=model):
                r, = self.compare(FAULT % locals(), code=1)
                self.assertEqual(r["verdict"], "different")
                self.assertEqual(r["first_divergence"], op, r["divergence"])
                self.assertEqual(r["suspect"], "b", r["divergence"])
                if what is not None:
                    self.assertEqual(r["first_beyond"]["what"], what)
                if parameter is not None:
                    self.assertEqual(r["parameter"], parameter)
                    self.assertIn(parameter, r["divergence"])
                found = r["first_beyond"]
                copies = " (copies that differ)" if what == "parameter" else ""
                print(f"{fault} ({model}, {precision}): {found['error'] / found['bound']:.2g} times the bound at "
                      f"{found['text'].split(':')[0]}{copies}")

    def test_a_missing_all_reduce(self):
        # Named is the op that reads what should have been whole.
        self.fault("missing_all_reduce", "layers.1.attention.o", "dp(2), tp(2)", "layers.1.attention_add", what="operand")

    def test_a_missing_all_reduce_in_a_deep_model(self):
        self.fault("missing_all_reduce", "layers.10.mlp.down", "tp(2)", "layers.10.mlp_add", model="deep", what="operand")

    def test_a_missing_reduction_of_gradients(self):
        self.fault("missing_gradient_reduction", "layers.0.mlp.up.weight", 'dp { 2, bucket = "1B" }', "layers.0.mlp.up",
                   parameter="layers.0.mlp.up.weight", what="parameter gradient")

    def test_a_replica_counted_twice(self):
        self.fault("counted_twice", "layers.0.mlp.down", "tp(2)", "layers.0.mlp_add", what="operand")

    def test_a_bias_that_every_rank_adds(self):
        # Biases start at zero: it shows in the second step.
        self.fault("bias_on_every_rank", "layers.0.attention.o.bias", "tp(2)", "layers.0.attention.o", model="gpt", what="operand")

    def test_a_wrong_loss_scale(self):
        self.fault("loss_scale", "", "dp(2)", "loss", what="gradient")

    def test_a_stale_gather(self):
        self.fault("stale_gather", "layers.1.mlp.up.weight", 'zero { 2, stage = 1, bucket = "1B" }', "layers.1.mlp.up",
                   parameter="layers.1.mlp.up.weight", what="parameter")

    def test_a_microbatch_whose_loss_counts_twice(self):
        self.fault("microbatch_loss", "", "dp(2)", "loss", what="gradient")

    def test_a_microbatch_whose_weights_count_twice(self):
        self.fault("microbatch_weight", "", "dp(2)", "head", parameter="head.weight", what="parameter gradient")

    def test_faults_in_deep_models_of_a_parameter(self):
        self.fault("missing_gradient_reduction", "layers.1.attention.q.weight", 'dp { 2, bucket = "1B" }', "layers.1.attention.q",
                   model="deep", parameter="layers.1.attention.q.weight")

    def test_refused_before_any_rank_starts(self):
        done = self.call("run", self.write(MODELS + """
local b = e("gpt", { tp(2) }, { batch = 4, seed = 3, sequence = 8, optimizer = mw.adamw { lr = 2e-3, clip = 0.5 } })
mw.compare(e("llama", { dp(2) }), b)
"""), "--json")
        self.assertEqual(done.returncode, 2, done.stderr)
        keys = ("model", "batch", "seed", "sequence", "optimizer", "schedule")
        self.assertEqual(sorted(problems(self.lines(done))), sorted(f"compare.differs {key}" for key in keys))

    def test_overflows_have_nothing_to_compare(self):
        for changes, problem in (('precision = "fp16", loss_scale = 2 ^ 32', "compare.overflow loss_scale"),
                              ("optimizer = mw.sgd { lr = 1e30 }", "compare.not-finite")):
            script = self.write(MODELS + f'mw.compare(e("llama", {{ dp(2) }}, {{ {changes} }}), '
                                         f'e("llama", {{ tp(2) }}, {{ {changes} }}))')
            self.refused(1, problem, "run", script)

    def test_steps_with_plans_of_their_own_are_refused(self):
        ramp = "{ microbatch = mw.microbatch.ramp { from = 2, by = 6, steps = 1 } }"
        self.refused(2, "compare.steps microbatch", "run",
                     self.write(MODELS + f'mw.compare(e("llama", {{}}), e("llama", {{ dp(2) }}, {ramp}))'))

    def test_problems_of_both_tables_name_their_lines(self):
        done = self.call("run", self.write(MODELS + """
mw.compare(e("llama", { dp(3) }), e("llama", {
  tp(5) }))
"""), "--json")
        self.assertEqual(done.returncode, 3, done.stderr)
        errors = self.lines(done)
        self.assertEqual(problems(errors)[0], "batch.uneven a.batch")
        self.assertEqual({error["line"] for error in errors if error["key"] == "b.plan[1].ways"}, {17})

    def test_two_scripts_from_the_command_line(self):
        first = self.folder / "first.lua"
        first.write_text(MODELS + 'local r = mw.train(e("llama", { dp(2) }, { schedule = function(step) return 1e-3 end }))')
        second = self.folder / "second.lua"
        second.write_text(MODELS + 'mw.train(e("llama", { tp(2) }))')
        result = self.only("compare", first, second, "--set", "precision=bf16")
        self.assertEqual((result["verdict"], result["a"], result["b"]), ("equal", "dp(2)", "tp(2)"))
        self.assertEqual(result["precision"], ["bf16", "bf16"])
        self.refused(2, "compare.count", "compare", first)
        first.write_text(second.read_text() + '\nmw.train(e("llama", { tp(2) }))')
        done = self.call("compare", first)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("equal, bit for bit", done.stdout)

    def test_an_interrupt_leaves_no_verdict(self):
        script = self.write(MODELS + 'mw.compare(e("deep", { dp(2) }), e("deep", { tp(2) }))')
        process = subprocess.Popen([BIN, "run", script, "--json", "--set", "sequence=2048"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, out + said)
        result = json.loads(out)
        self.assertEqual((result["status"], result["verdict"]), ("interrupted", None))

    def test_the_script_of_the_repository(self):
        (self.folder / ".deps").symlink_to(SOURCE / ".deps")
        done = self.call("run", SOURCE / "scripts/compare.lua")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("equal: all differences are within what rounding explains", done.stdout)
        self.assertIn("a: dp(4) in fp32; b: tp(2) in bf16", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
