-- A strategy of one's own in ten lines: tensor parallelism over two axes. Feed-forward layers are
-- cut over one, attention and the vocabulary over the other, each in as many ways as its dims go
-- with. sp() finds both by their role and cuts the residual stream along the sequence over them.
local mw     = require "meshwright"
local dp, sp = mw.plugins("dp", "sp")

local tp2d = mw.strategy {
  name  = "tp2d",
  axis  = { { "rows", ways = 2, role = "model" }, { "cols", ways = 2, role = "model" } },
  rules = {
    { "ffn", axis = "rows" },
    { "heads", axis = "cols" }, { "kv_heads", axis = "cols", optional = true },
    { "vocab", axis = "cols" },
  },
  note  = "feed-forward over rows, attention and vocabulary over cols",
}

print(mw.train {
  model      = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
  data       = mw.text { "gcide", sequence = 128 },
  plan       = { dp(2), tp2d { rows = 2, cols = 2 }, sp() },       -- 8 ranks
  batch      = 16,
  microbatch = 4,
  optimizer  = mw.adamw { lr = 3e-3, clip = 1.0 },
  steps      = 20,
  log        = "runs/own_strategy.h5",
})
