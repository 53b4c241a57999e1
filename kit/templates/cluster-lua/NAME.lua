-- A small plan, priced for the cluster @NAME@.
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

mw.plan {
  model = mw.llama { layers = 4, hidden = 16, heads = 4, ffn = 32, vocab = 32 },
  data  = mw.synthetic {}, sequence = 8,
  plan  = { dp(2), tp(2) }, cluster = mw.cluster "./@NAME@.cluster.lua",
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
