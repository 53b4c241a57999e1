-- What a ring step adds to what the steps before made was predicted of the first step too, where
-- another axis cuts the queries.
local mw = require "meshwright"
local sp = mw.plugins("sp")
local rows = mw.strategy { name = "rows", axis = { name = "rows" }, rules = { "seq" } }
for _, sequence in ipairs { 5, 9, 13 } do
  local run = mw.train {
    model = mw.llama { layers = 3, hidden = 64, heads = 8, kv_heads = 8, vocab = 8, ffn = 4 },
    data = mw.synthetic {},
    sequence = sequence,
    plan = { sp { 2, form = "ring", balance = "none" }, rows(2) },
    batch = 2,
    optimizer = mw.sgd { lr = 0.1 },
    steps = 1,
    microbatch = 1,
  }
  assert(run.peak_bytes == run.predicted.peak_bytes,
    ("%d bytes, %d predicted"):format(run.peak_bytes, run.predicted.peak_bytes))
end
