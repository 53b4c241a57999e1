-- Mixtral 8x22B (Mistral AI 2024: 140.6 B parameters, 39 B of them for a token; the shapes of its
-- config.json) as Megatron-Core trains it on 128 H100 in bf16 with 4,096 tokens, the optimizer's
-- state in parts: 46.3 % MFU (Liu et al. 2025, "MoE Parallel Folding", arXiv:2504.14960, without
-- folding; with it 49.3 %, as its abstract says). The 46.3 %, TP 2, EP 4, PP 8 and a batch of 256
-- are as others report that run (github.com/zhebrak/llm-cluster-simulator, docs/BENCHMARKS.md,
-- section 2.1) and not checked against the paper's own tables; chunks, and no recompute, are ours.
-- `./meshwright plan scripts/published/mixtral-8x22b.lua`
local mw                   = require "meshwright"
local pp, zero, tp, sp, ep = mw.plugins("pp", "zero", "tp", "sp", "ep")

local plan = mw.plan {
  model = mw.moe {
    layers = 56, hidden = 6144, heads = 48, kv_heads = 8, ffn = 16384, vocab = 32768,
    experts = 8, top_k = 2, balance = "aux", aux_weight = 0.001,
    rope_theta = 1e6, norm_eps = 1e-5,
  },
  data = mw.synthetic {}, sequence = 4096,
  plan = {
    pp { 8, schedule = "interleaved", chunks = 7 },    -- 56 virtual stages of a layer
    zero { 8, stage = 1 },
    tp(2), sp(),
    ep(4),                                             -- two experts to a rank, on zero's ranks: a node
  },
  batch = 256, microbatch = 1,
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 1e-4, clip = 1.0 },
  schedule = mw.cosine { warmup = 200 },
  steps = 2000,
  cluster = mw.cluster("dgx-h100", { nodes = 16 }), stack = mw.stack "megatron-core",
}

local published = plan.flops_per_step / (0.463 * 128 * 989e12)
print("mixtral-8x22b: " .. mw.published(plan, published))
