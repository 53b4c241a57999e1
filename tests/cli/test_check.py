"""`check = true` from outside: silent on right mixes in both precisions; a fault ends the run
with rank, op and axis."""

import unittest

from cases import MODELS, TEST_PLUGINS, UNPROVED, ProgramCase, matrix

HEAD = MODELS + """local function e(model, plan, more)
  local t = { model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8, microbatch = 2,
    threads = 1, check = true, optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(more or {}) do t[key] = value end
  return mw.train(t)
end
"""

MIXES = HEAD + """
local mixes = {
  {}, { dp(2), tp(2) }, { tp(2), sp() }, { zero { 2, stage = 1 }, tp(2) }, { zero { 4, stage = 3, replicas = 2 } },
  { sp(2), dp(2) }, { sp { 2, form = "ulysses" } }, { sp { 2, form = "allgather" }, tp(2) },
  { pp { 2, schedule = "1f1b" }, dp(2) }, { pp { 2, schedule = "zbv" }, tp(2) },
  { dp { 2, hook = "powersgd" } },
}
local experts = { { tp(2) }, { dp(2), tp(2) }, { dp(2), ep(2) }, { dp(2), tp(2), ep(4) }, { pp(2), zero { 2, stage = 3 }, ep(2) } }
for _, precision in ipairs { "fp64", "fp32", "bf16" } do
  for _, recompute in ipairs { "none", "full" } do
    for _, model in ipairs { "llama", "gpt" } do
      for _, plan in ipairs(mixes) do
        e(model, plan, { precision = precision, recompute = recompute, main_gradients = "fp32" })
      end
    end
    for _, plan in ipairs(experts) do e("moe", plan, { precision = precision, recompute = recompute }) end
  end
end
"""


KEPT = HEAD + """
local kept = {
  { dp(2), tp(2) }, { tp(2), sp() }, { zero { 2, stage = 1 }, tp(2) }, { zero { 2, stage = 1, offload = "optimizer" } },
  { zero { 2, stage = 2, offload = "optimizer", update = "host", overlap_update = true } },
  { zero { 4, stage = 3, replicas = 2 } }, { zero { 4, stage = 3, replicas = 2, offload = "parameters" } },
  { sp(2), dp(2) }, { pp { 2, schedule = "zbv" }, dp(2) }, { pp { 2, schedule = "1f1b" }, zero { 2, stage = 2 } },
  { dp { 2, hook = "powersgd" } },
}
local experts = { { dp(2), ep(2) }, { dp(2), tp(2), ep(4) }, { pp(2), zero { 2, stage = 3 }, ep(2) } }
local more = { check = { "replicas", every = 2 }, steps = 3, precision = "fp32" }
for _, plan in ipairs(kept) do e("llama", plan, more) end
for _, plan in ipairs { { dp(2), tp(2) }, { zero { 4, stage = 2, replicas = 2 } } } do
  for _, optimizer in ipairs { mw.muon { lr = 0.02 }, mw.shampoo { lr = 0.02 } } do
    e("gpt", plan, { check = { "replicas", every = 2 }, steps = 3, precision = "fp32", optimizer = optimizer })
  end
end
for _, plan in ipairs(experts) do e("moe", plan, more) end
"""


class Replicas(ProgramCase):
    def test_every_way_of_keeping_passes(self):
        done = self.call("run", self.write(KEPT), "--json")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        results = self.lines(done)
        self.assertEqual(len(results), 11 + 4 + 3)
        self.assertEqual(done.stderr.count("tensors that ranks keep"), len(results))
        for result in results:
            with self.subTest(result["plan"][:60]):
                check = result["check"]
                self.assertEqual(check["compared_steps"], 2)  # after steps 1 and 2, the last
                self.assertGreater(check["replicas"], 0)
                self.assertNotIn("unused", check)

    def test_it_changes_no_loss(self):
        losses = [self.only("run", self.write(HEAD + f'e("llama", {{ dp(2), tp(2) }}, {{ check = {check}, steps = 4 }})'))["losses"]
                  for check in ("false", '"replicas"')]
        self.assertEqual(*losses)

    def test_a_missing_sum_ends_the_run(self):
        for every, step in ((2, 1), (100, 4)):
            with self.subTest(every):
                script = self.write(HEAD + f"""
local faults = mw.plugin "faults"
e("llama", {{ dp {{ 2, bucket = "4KiB" }}, faults {{ "missing_gradient_reduction", at = "layers.1.mlp.up.weight" }} }},
  {{ check = {{ "replicas", every = {every} }}, steps = 5, precision = "fp32" }})""")
                done = self.call("run", script, "--json", "--plugin-path", TEST_PLUGINS, **UNPROVED)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                failed, error = self.lines(done)
                self.assertEqual((failed["status"], error["code"]), ("failed", "check.replicas"))
                self.assertEqual(failed["steps"], step + 1)
                for fragment in ("layers.1", "Replicate over dp", "rank 1", f"step {step}"):
                    self.assertIn(fragment, error["message"])

    def test_what_it_cannot_be(self):
        for check, key in (('"replica"', "option.choice check.what"), ("5", "option.type check"),
                           ('{ "replicas", every = 0 }', "option.range check.every"),
                           ('{ "replicas", evry = 2 }', "option.unknown check.evry")):
            with self.subTest(check):
                self.refused(2, key, "run", self.write(HEAD + f'e("llama", {{ dp(2) }}, {{ check = {check} }})'))


class Check(ProgramCase):
    @matrix
    def test_right_mixes_pass(self):
        done = self.call("run", self.write(MIXES), "--json")
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        results = self.lines(done)
        self.assertEqual(done.stderr.count("equal on their replicas"), len(results))
        self.assertEqual(len(results), 3 * 2 * (2 * 11 + 5))
        for result in results:
            with self.subTest(result["plan"][:60]):
                self.assertEqual(result["status"], "done")
                self.assertEqual(result["check"]["unused"], [])
                self.assertGreater(result["check"]["tensors"], 100)
                sent = [c for c in result["communication"] if c["phase"] == "check"]
                self.assertEqual(bool(sent), result["ranks"] > 1)

    def test_it_changes_no_loss(self):
        for model in ("llama", "moe"):
            for precision in ("fp64", "fp32"):
                run = lambda check: self.only("run", self.write(
                    HEAD + f'e("{model}", {{ dp(2), tp(2) }}, {{ check = {check}, precision = "{precision}" }})'))
                self.assertEqual(run("true")["losses"], run("false")["losses"])
        self.assertNotIn("check", run("false"))

    def broken(self, fault, at, dp=1):
        return self.write(HEAD + f"""
local broken = mw.plugin "broken_adjoint"
e("llama", {{ dp {{ {dp}, bucket = "1B" }}, broken {{ ways = {2 if dp == 1 else 1}, fault = "{fault}", at = "{at}" }} }})""")

    def ends(self, code, script, *at):
        done = self.call("run", script, "--json", "--plugin-path", TEST_PLUGINS, **UNPROVED)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        failed, error = self.lines(done)
        self.assertEqual((failed["status"], error["kind"]), ("failed", "error"))
        self.assertEqual(error["code"], code)
        for fragment in at:  # what and when
            self.assertIn(fragment, error["message"])

    def test_a_missing_sum_ends_the_run(self):
        for fault, at, fragments in (
            ("drop_forward", "layers.2.mlp", ("layers.2.mlp", "Replicate over tp")),
            ("drop_backward", "d layers.1.mlp_norm", ("layers.1", "Replicate over tp")),
            ("drop_gradient", "layers.1.mlp.up.weight", ("the parameters of", "Replicate over dp")),
        ):
            with self.subTest(fault):
                script = self.broken(fault, at, 2 if fault == "drop_gradient" else 1)
                self.ends("check.replicas", script, "step 0", *fragments)

    def test_what_it_needs_is_not_counted(self):
        for check in ("false", "true"):
            run = self.only("run", self.write(HEAD + f'e("llama", {{ dp(2), tp(2) }}, {{ check = {check} }})'))
            self.assertAlmostEqual(run["peak_bytes"] / run["predicted"]["memory"][0]["peak"], 1, delta=0.02)
        peak = run["predicted"]["memory"][0]["peak"]
        self.only("run", self.write(HEAD + f'e("llama", {{ dp(2), tp(2) }}, {{ memory = {peak + 2048} }})'))

    def test_the_last_update_and_gradients_too(self):
        blown = "{ optimizer = mw.adamw { lr = 3e38, weight_decay = 10 }, steps = 1 }"
        self.ends("check.not-finite", self.write(HEAD + f'e("llama", {{ dp(2) }}, {blown})'), "after step 0", "rank")
        # What overflows is left out where the loss is scaled; what does not may not be infinite.
        run = self.only("run", self.write(
            HEAD + 'e("llama", { dp(2) }, { precision = "fp16", loss_scale = { init = 2 ^ 60, backoff = 2 ^ -20 }, steps = 4 })'))
        self.assertGreaterEqual(len(run["skipped_steps"]), 1)
        self.assertEqual(run["check"]["unused"], [])

    def test_what_is_not_finite(self):
        script = self.write(HEAD + 'e("gpt", { dp(2) }, { optimizer = mw.sgd { lr = 1e38 } })')
        self.ends("check.not-finite", script, "the output of", "step 1", "rank")


if __name__ == "__main__":
    unittest.main(verbosity=2)
