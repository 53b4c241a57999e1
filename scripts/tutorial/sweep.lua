-- The sweep of docs/tutorial.md: three splits of four ranks with two seeds each, six trainings.
local mw           = require "meshwright"
local dp, tp, zero = mw.plugins("dp", "tp", "zero")

local sweep = mw.sweep {
  name = "tutorial",                         -- its folder is runs/tutorial
  base = {
    model     = mw.llama { layers = 4, hidden = 128, heads = 8, ffn = 352, vocab = 256 },
    data      = mw.text { "gcide", sequence = 128 },
    batch     = 16,
    optimizer = mw.adamw { lr = 3e-3, clip = 1.0 },
    schedule  = mw.cosine { warmup = 10 },
    steps     = 20,
  },
  over = {
    plan = { { dp(4) }, { dp(2), tp(2) }, { zero { 4, stage = 1 } } },
    seed = { 1, 2 },
  },
  same_loss_as = "dp(4)",                    -- a split that trains differently has failed
}
local cells = sweep:go { reruns = 0 }      -- once each, even where other programs had the cores
print(cells)
