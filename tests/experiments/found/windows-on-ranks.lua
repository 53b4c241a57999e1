-- Ranks whose forward takes as much were taken to be alike, and one of them was predicted for all.
-- Their backward takes more where a window ends before the keys do.
local mw = require "meshwright"
local sp, zero = mw.plugins("sp", "zero")
local run = mw.train {
  model = mw.llama { layers = 1, hidden = 8, heads = 4, vocab = 16, ffn = 8, kv_heads = 4, window = 2 },
  data = mw.synthetic {},
  sequence = 16,
  plan = { sp { 3, form = "allgather", balance = "none" }, zero { 2, stage = 3 } },
  batch = 4,
  optimizer = mw.sgd { lr = 0.1, momentum = 0.9 },
  steps = 1,
  microbatch = 2,
}
assert(run.peak_bytes == run.predicted.peak_bytes,
  ("%d bytes, %d predicted"):format(run.peak_bytes, run.predicted.peak_bytes))
