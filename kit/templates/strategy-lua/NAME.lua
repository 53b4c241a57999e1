-- The strategy @NAME@: which dims of the model live on its axis. What is sent, forward and backward,
-- follows from that.
local mw = require "meshwright"

local @NAME@ = mw.strategy {
  name  = "@NAME@",
  axis  = { role = "model" },
  rules = { "ffn", "vocab" },
}

mw.train {
  model = mw.llama { layers = 4, hidden = 16, heads = 4, ffn = 32, vocab = 32 },
  data  = mw.synthetic {}, sequence = 8,
  plan  = { @NAME@(2) },
  batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
