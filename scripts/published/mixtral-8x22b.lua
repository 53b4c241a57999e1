-- Mixtral 8x22B (Mistral AI 2024: 140.6 B parameters, 39 B of them for a token; the shapes of its
-- config.json) as Megatron-Core's benchmarks train it: 256 GPUs, TP 4, PP 4, EP 8, 4096 tokens in
-- bf16, the optimizer's state in parts (Liu et al. 2025, "MoE Parallel Folding", has the folding:
-- EP borrows ranks of data parallelism). Batch and chunks are ours.
-- `./meshwright plan scripts/published/mixtral-8x22b.lua` resolves and prices it.
local mw                   = require "meshwright"
local pp, zero, tp, sp, ep = mw.plugins("pp", "zero", "tp", "sp", "ep")

mw.train {
  model = mw.moe {
    layers = 56, hidden = 6144, heads = 48, kv_heads = 8, ffn = 16384, vocab = 32768,
    experts = 8, top_k = 2, balance = "aux", aux_weight = 0.001,
    rope_theta = 1e6, norm_eps = 1e-5,
  },
  data = mw.synthetic {}, sequence = 4096,
  plan = {
    pp { 4, schedule = "interleaved", chunks = 7 },    -- 28 virtual stages of 2 layers
    zero { 16, stage = 1 },
    tp(4), sp(),
    ep(8),                                             -- an expert to a rank, on zero's ranks
  },
  batch = 256, microbatch = 1,
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 1e-4, clip = 1.0 },
  schedule = mw.cosine { warmup = 200 },
  steps = 2000,
}
