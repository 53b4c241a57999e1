"""mw.compare: correct mixes are equal within the measured bound, in fp32, bf16 and fp64 and
between precisions; five injected faults are not, in fp32 and in bf16, and the op or the
parameter is named; what cannot be compared is refused. Prints how near correct mixes come to the
bound, and how far beyond it the faults are."""

import json
import os
import pathlib
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

# Fault, where it is added, plan, op that must be named; and what more is known.
FAULTS = [
    # Named is the op that reads what should have been whole.
    ("missing_all_reduce", "layers.1.attention.o", "dp(2), tp(2)", "layers.1.attention_add", {"what": "operand"}),
    ("missing_all_reduce", "layers.10.mlp.down", "tp(2)", "layers.10.mlp_add", {"model": "deep", "what": "operand"}),
    ("missing_gradient_reduction", "layers.0.mlp.up.weight", 'dp { 2, bucket = "1B" }', "layers.0.mlp.up",
     {"parameter": "layers.0.mlp.up.weight", "what": "parameter gradient"}),
    ("missing_gradient_reduction", "layers.1.attention.q.weight", 'dp { 2, bucket = "1B" }', "layers.1.attention.q",
     {"model": "deep", "parameter": "layers.1.attention.q.weight"}),
    ("counted_twice", "layers.0.mlp.down", "tp(2)", "layers.0.mlp_add", {"what": "operand"}),
    # Biases start at zero: it shows in the second step.
    ("bias_on_every_rank", "layers.0.attention.o.bias", "tp(2)", "layers.0.attention.o", {"model": "gpt", "what": "operand"}),
    ("loss_scale", "", "dp(2)", "loss", {"what": "gradient"}),
    ("stale_gather", "layers.1.mlp.up.weight", 'zero { 2, stage = 1, bucket = "1B" }', "layers.1.mlp.up",
     {"parameter": "layers.1.mlp.up.weight", "what": "parameter"}),
    ("microbatch_loss", "", "dp(2)", "loss", {"what": "gradient"}),
    ("microbatch_weight", "", "dp(2)", "head", {"parameter": "head.weight", "what": "parameter gradient"}),
]
FAULTY = MODELS + """
local faults = mw.plugin "faults"
local function faulty(model, precision, plan, fault, at)
  local changes, broken = { precision = precision, microbatch = 2 }, { table.unpack(plan) }
  table.insert(broken, faults { fault, at = at })
  mw.compare(e(model, plan, changes), e(model, broken, changes))
end
"""


def cpu_seconds_of(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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

    def test_faults(self):
        """In both precisions: different, exit 1, that op, and b the one that is off."""
        cases = [(precision, *fault) for precision in ("fp32", "bf16") for fault in FAULTS]
        results = self.compare(FAULTY + "".join(
            f'faulty("{more.get("model", "llama")}", "{precision}", {{ {plan} }}, "{fault}", "{at}")\n'
            for precision, fault, at, plan, _, more in cases), code=1)
        for (precision, fault, at, plan, op, more), r in zip(cases, results, strict=True):
            with self.subTest(fault, at=at, precision=precision):
                self.assertEqual((r["verdict"], r["first_divergence"], r["suspect"]), ("different", op, "b"), r["divergence"])
                found = r["first_beyond"]
                self.assertEqual(found["what"], more.get("what", found["what"]))
                self.assertEqual(r["parameter"], more.get("parameter", r["parameter"]))
                self.assertIn(more.get("parameter", ""), r["divergence"])
                copies = " (copies that differ)" if found["what"] == "parameter" else ""
                print(f"{fault} at {at} ({precision}): {found['error'] / found['bound']:.2g} times the bound at "
                      f"{found['text'].split(':')[0]}{copies}")

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
        script = self.write(MODELS + 'io.stderr:write("begun\\n") mw.compare(e("deep", { dp(2) }), e("deep", { tp(2) }))')
        process = subprocess.Popen([BIN, "run", script, "--json", "--set", "sequence=2048"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        while "begun" not in process.stderr.readline():
            pass
        # A step is under way: planning takes far less of a core than this, and two steps far more.
        while cpu_seconds_of(process.pid) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, out + said)
        result = json.loads(out)
        self.assertEqual((result["status"], result["verdict"]), ("interrupted", None))

    def test_the_script_of_the_repository(self):
        (self.folder / ".deps").symlink_to(SOURCE / ".deps")
        # Its mw.compare is what these commands are for, though it has no mw.train.
        for command in ("run", "compare", "verify"):
            with self.subTest(command):
                done = self.call(command, SOURCE / "scripts/compare.lua")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("equal: all differences are within what rounding explains", done.stdout)
                self.assertIn("a: dp(4) in fp32; b: tp(2) in bf16", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
