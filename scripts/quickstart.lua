-- Eight ranks as threads on this machine: two data-parallel copies of a model split over four.
local mw     = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local run = mw.train {
  model     = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
  data      = mw.text { "gcide", sequence = 128 },  -- a dictionary of English, as bytes
  plan      = { dp(2), tp(4) },              -- 8 ranks: the product; the last axis is adjacent
  batch     = 16,                            -- sequences per step, over all ranks
  optimizer = mw.adamw { lr = 3e-3, clip = 1.0 },
  schedule  = mw.cosine { warmup = 10 },
  steps     = 100,
  log       = "runs/quickstart.h5",
}
print(run)                                   -- measured beside predicted
