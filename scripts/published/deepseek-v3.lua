-- DeepSeek-V3 (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", sections 2, 3.2 and 4.2): 671.0
-- B parameters, 37 B of them for a token, and a module of 11.6 B more that predicts a second
-- token, on 2048 H800: PP 16, EP 64, ZeRO-1, no TP. A trillion tokens took 180 thousand GPU
-- hours (section 1), failures apart: 19.9 s for a step of 15,360 sequences.
-- `./meshwright plan scripts/published/deepseek-v3.lua`
-- The module's size is without the embedding and the output projection (1.9 B), which are the
-- model's. Left out: the loss of 1e-4 that keeps each sequence even beside the bias. FP8,
-- moments in bf16 and how many nodes a token is sent to are in the stack's prices alone.
-- DualPipe, which keeps two copies of the parameters, is DualPipeV here, its half. The layers of
-- each stage are not published. The report shows how a pair is interleaved in a figure; this plan
-- interleaves pairs by predicted seconds, and scripts/pairs.lua compares other orders.
-- The plan needs more memory than an H800 has: docs/models.md lists what DeepSeek's trainer does
-- not store.
local mw           = require "meshwright"
local pp, zero, ep = mw.plugins("pp", "zero", "ep")

-- 32 virtual stages in a V: rank 0 has the first and the last, so the embedding, the module, and
-- the output projection, which both losses use.
local layout = {}
for k = 1, 32 do layout[k] = (k == 1 or k == 32) and 1 or 2 end

local plan = mw.plan {
  model = mw.moe {
    layers = 61, dense_layers = 3, hidden = 7168, heads = 128, ffn = 18432, vocab = 129280,
    q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    experts = 256, top_k = 8, expert_ffn = 2048, shared_experts = 1, groups = 8, group_top = 4, predict_ahead = 1,
    score = "sigmoid", normalise = true, scale = 2.5, balance = "bias", bias_rate = 0.001,
    rope_theta = 10000, norm_eps = 1e-6,
  },
  data = mw.synthetic {}, sequence = 4096,
  plan = {
    pp { 16, schedule = "dualpipev", layout = layout, weave = "hide" },
    zero { 128, stage = 1 },
    -- 4 experts to a rank; 2 ranks hold the same. The fullest expert has 4 % more than the average
    -- under this balancing, over many batches (quoted of Wang et al. 2024, "Auxiliary-Loss-Free
    -- Load Balancing Strategy", table 2, and not checked against the paper); one batch is less
    -- even.
    ep { 64, imbalance = 1.04 },
  },
  batch = 15360, microbatch = 1,
  -- Norms, attention's up-projections and SwiGLU (section 3.2.3); no token is dispatched again.
  recompute = {
    ops = { "rms_norm", "swiglu", "attention.q", "attention.q_rope", "attention.kv", "attention.keys" },
    collectives = "keep",
  },
  precision = "bf16", main_gradients = "fp32",
  optimizer = mw.adamw { lr = 2.2e-4, betas = { 0.9, 0.95 }, weight_decay = 0.1, clip = 1.0 },
  schedule = mw.cosine { warmup = 2000 },
  steps = 20000,
  cluster = mw.cluster("h800", { nodes = 256 }), stack = mw.stack "deepseek-v3",
}

print("deepseek-v3: " .. mw.published(plan, 180e3 * 3600 / 1e12 * 15360 * 4096 / 2048))
