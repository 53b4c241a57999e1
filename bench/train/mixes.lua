-- One training run of `meshwright bench train`: the baseline's model, tokens and optimizer, one
-- thread a rank. The bench sets model, plan, data, sequence, batch, steps and weights with --set.
local mw = require "meshwright"

mw.train {
  model     = mw.llama { layers = 4, hidden = 256, heads = 8, ffn = 688, vocab = 256 },
  data      = mw.text { ".deps/text/gcide.txt", order = "sequential" },
  sequence  = 128,
  plan      = {},
  batch     = 16,
  optimizer = mw.adamw { lr = 1e-3 },
  steps     = 10,
  threads   = 1,
}
