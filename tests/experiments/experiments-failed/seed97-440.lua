-- train: the peak is not the predicted one
-- Made smaller from experiment 440 of seed 97: tests/experiments/experiments.py --seed 97 --only 440
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep, coshard, replicas = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep", "coshard", "replicas")
mw.train {
  model = mw.moe { layers = 1, hidden = 8, heads = 4, vocab = 16, ffn = 8, experts = 4, top_k = 4, kv_lora_rank = 1, qk_nope_head_dim = 1, qk_rope_head_dim = 2, v_head_dim = 1 },
  data = mw.pack { data = mw.synthetic {}, lengths = mw.lognormal { median = 4, sigma = 1 } },
  sequence = 8,
  plan = {
    dp { 4 },
    ep { 4, dispatch = "allgather" },
    tp { 2 },
  },
  batch = 16,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
  precision = "bf16",
}
