-- Experts over eight ranks: attention is dp 2 x tp 2 x cp 2,
-- and the same ranks hold two experts each.
local mw             = require "meshwright"
local dp, tp, sp, ep = mw.plugins("dp", "tp", "sp", "ep")

return mw.train {
  model     = mw.moe { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256,
                       experts = 16, top_k = 2, expert_ffn = 96, shared_experts = 1, dense_layers = 1,
                       score = "sigmoid", balance = "bias", bias_rate = 0.01 },
  data      = mw.text { "gcide", sequence = 128 },
  plan      = { sp(2), dp(2), tp(2), ep { 8, overlap = true } },
  batch     = 16,                            -- sequences per step, over all ranks
  optimizer = mw.adamw { lr = 3e-3, clip = 1.0 },
  schedule  = mw.cosine { warmup = 10 },
  steps     = 60,
  log       = "runs/experts.h5",
}
