"""Latent attention: every mix equals one rank; what is sent for it; refusals."""

import unittest

from cases import ProgramCase, matrix

MODELS = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp, ep = mw.plugins("dp", "tp", "sp", "zero", "pp", "ep")
local function latent(t)
  local m = { layers = 2, hidden = 32, heads = 4, ffn = 40, vocab = 50, experts = 4, top_k = 2, expert_ffn = 24,
              dense_layers = 1, q_lora_rank = 20, kv_lora_rank = 12, qk_nope_head_dim = 8, qk_rope_head_dim = 4,
              v_head_dim = 8 }
  for key, value in pairs(t) do m[key] = value or nil end
  return mw.moe(m)
end
local models = {
  latent { shared_experts = 1, balance = "bias", bias_rate = 0.01, score = "sigmoid", scale = 2.5 },
  latent { q_lora_rank = false, v_head_dim = 14, tied = true },   -- values wider than keys
}
local function e(model, plan, verb, recompute)
  return verb { model = models[model], data = mw.synthetic {}, sequence = 16, plan = plan, batch = 8,
    microbatch = 1, optimizer = mw.adamw { lr = 1e-3, clip = 0.5 }, steps = 2, recompute = recompute }
end
"""

MIXES = MODELS + """
local mixes = {
  {}, { tp(2) }, { tp(4) }, { dp(2) }, { zero { 2, stage = 3 } }, { zero { 4, stage = 1 }, ep(2) },
  { dp(2), ep(2) }, { dp(2), tp(2), ep(4) }, { tp(2), sp() }, { tp(4), sp(), ep(2) },
  { zero { 2, stage = 3 }, tp(2), sp(), ep(2) },
  { sp(2) }, { sp(4) }, { sp { 2, balance = "none" } }, { sp { 2, form = "allgather" } },
  { sp { 2, form = "allgather", balance = "none" } },
  { sp { 2, form = "ulysses" } }, { sp { 4, ulysses = 2 }, ep(2) }, { sp(2), tp(2), sp() },
  { dp(2), sp { 2, form = "ulysses" }, tp(2), ep(4) }, { dp(2), sp(2), ep(4) },
  { pp(2) }, { pp { 2, schedule = "zb-h1" }, tp(2) },
  { pp { 2, schedule = "1f1b" }, zero { 2, stage = 3 }, ep(2) },
  { pp { 2, schedule = "zb-h2" }, zero { 2, stage = 2 }, tp(2), sp(), ep(4) },
}
for model = 1, #models do
  for _, plan in ipairs(mixes) do e(model, plan, mw.verify) end
end
local again = { "full", "selective", { ops = { "rms_norm", "attention.q", "attention.q_rope", "attention.kv",
                                               "attention.keys" } } }
for _, plan in ipairs { { dp(2), tp(2), ep(4) }, { pp(2), tp(2), sp() }, { sp(2), zero { 2, stage = 3 } } } do
  for _, recompute in ipairs(again) do e(1, plan, mw.verify, recompute) end
end
"""


class LatentAttention(ProgramCase):
    @matrix
    def test_every_mix_equals_one_rank(self):
        results = self.verify_all(MIXES)
        self.assertEqual(len(results), 2 * 25 + 3 * 3)

    def traffic(self, plan):
        result = self.only("plan", self.write(MODELS + f"e(1, {plan}, mw.plan)"))
        return {(c["axis"], c["op"], c["phase"]): c["bytes"] for c in result["communication"]}

    def test_what_tensor_parallelism_sends(self):
        """The latents, not what is made of them: their gradients are sums over tp."""
        latent = 20 + 12 + 4                                     # queries', keys' and the turned key
        tokens, last = 8 * 16, 4                                 # bytes of fp32
        sent = self.traffic("{ tp(2) }")
        plain = {k: v for k, v in sent.items() if k == ("tp", "all-reduce", "backward")}
        without = self.only("plan", self.write(
            MODELS.replace("q_lora_rank = 20, kv_lora_rank = 12, qk_nope_head_dim = 8, qk_rope_head_dim = 4,\n"
                           "              v_head_dim = 8", "") + "e(1, { tp(2) }, mw.plan)"))
        grouped = sum(c["bytes"] for c in without["communication"]
                      if (c["axis"], c["op"], c["phase"]) == ("tp", "all-reduce", "backward"))
        # Grouped attention's gradient of the stream, 32 wide, is summed once a layer;
        # here the latents' are.
        self.assertEqual(plain["tp", "all-reduce", "backward"] - grouped, 2 * tokens * (latent - 32) * last)

    def test_memory_and_traffic_are_as_predicted(self):
        # One expert: what is chosen is sure, and so is the memory.
        for plan in ("{}", "{ tp(2) }", "{ tp(2), sp() }", "{ sp { 2, form = 'allgather' } }", "{ sp(2) }",
                     "{ zero { 2, stage = 3 } }"):
            with self.subTest(plan):
                run = self.only("run", self.write(MODELS + f"""
models[1] = latent {{ experts = 1, top_k = 1 }}
e(1, {plan}, function(t) t.sequence, t.microbatch, t.precision = 64, 4, "fp32" return mw.train(t) end)"""))
                predicted = run["predicted"]["memory"][0]["peak"]
                self.assertLess(abs(run["peak_bytes"] / predicted - 1), 0.05)
                self.sent_as_predicted(run)

    def test_what_cannot_be(self):
        changed = lambda change: f"models[1] = latent {{ {change} }} e(1, {{}}, mw.plan)"
        self.all_refused(
            MODELS, (changed("kv_heads = 2"), 2, "option.conflict model.kv_heads"),
            (changed("qk_rope_head_dim = 5"), 2, "model.odd model.qk_rope_head_dim"),
            (changed("q_lora_rank = false, kv_lora_rank = false, qk_rope_head_dim = false, v_head_dim = false"), 2,
             "option.needs model.qk_nope_head_dim"),
            (changed("v_head_dim = false"), 2, "option.missing model.v_head_dim"),
            ("e(2, { tp(3) }, mw.plan)", 3, "axis.cannot-split plan[1].ways"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
