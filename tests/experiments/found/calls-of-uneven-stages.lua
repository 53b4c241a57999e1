-- The calls in a run's table were those of the rank that sends most, which with experts may be one
-- of another stage than predicted, with fewer calls.
local mw = require "meshwright"
local zero, pp, ep = mw.plugins("zero", "pp", "ep")
local run = mw.train {
  model = mw.moe { layers = 5, hidden = 8, heads = 4, vocab = 16, ffn = 7, experts = 2, top_k = 1 },
  data = mw.synthetic {},
  sequence = 8,
  plan = { ep(2), zero(2), pp(4) },
  batch = 2,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
  recompute = { every = 2 },
}
local predicted = {}
local function name(row) return ("%s on %s, %s"):format(row.op, row.axis, row.phase) end
for _, row in ipairs(run.predicted.communication) do predicted[name(row)] = row.calls end
for _, row in ipairs(run.communication) do
  local calls = predicted[name(row)]
  assert(calls == row.calls, ("%s: %d calls, %s predicted"):format(name(row), row.calls, calls))
end
