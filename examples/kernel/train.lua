-- The run of train.cpp as a script: both print the same losses.
local mw     = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local run = mw.train {
  model     = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 128, vocab = 128 },
  data      = mw.synthetic {},
  sequence  = 32,
  plan      = { dp(2), tp(2) },
  batch     = 8,
  precision = "fp64",
  optimizer = mw.adamw { lr = 1e-3 },
  steps     = 5,
}
for step, loss in ipairs(run.losses) do print(string.format("%d %.12f", step - 1, loss)) end
