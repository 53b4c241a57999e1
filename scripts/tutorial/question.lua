-- The question of docs/tutorial.md: a small Llama on four ranks, all of them data parallel.
local mw = require "meshwright"
local dp = mw.plugins "dp"

local run = mw.train {
  model     = mw.llama { layers = 4, hidden = 128, heads = 8, ffn = 352, vocab = 256 },
  data      = mw.text { "gcide", sequence = 128 },  -- a dictionary of English, as bytes
  plan      = { dp(4) },                     -- 4 ranks, each with a whole copy of the model
  batch     = 16,                            -- sequences per step, over all ranks
  optimizer = mw.adamw { lr = 3e-3, clip = 1.0 },
  schedule  = mw.cosine { warmup = 10 },
  steps     = 30,
  log       = "runs/dp4.h5",
}
print(run)
