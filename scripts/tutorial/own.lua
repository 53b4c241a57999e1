-- The strategy of docs/tutorial.md: tensor parallelism of the feed-forward layers alone.
local mw = require "meshwright"
local dp = mw.plugins "dp"

local narrow = mw.strategy {
  name  = "narrow",
  axis  = { role = "model" },
  rules = { "ffn", "vocab" },
}

print(mw.train {
  model     = mw.llama { layers = 4, hidden = 128, heads = 8, ffn = 352, vocab = 256 },
  data      = mw.text { "gcide", sequence = 128 },
  plan      = { dp(2), narrow(2) },
  batch     = 16,
  optimizer = mw.adamw { lr = 3e-3, clip = 1.0 },
  schedule  = mw.cosine { warmup = 10 },
  steps     = 20,
  log       = "runs/narrow.h5",
})
