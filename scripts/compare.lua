-- Two mixes of one model, in two precisions: where do they part first,
-- and does rounding explain it?
local mw       = require "meshwright"
local dp, tp   = mw.plugins("dp", "tp")

local base = {
  model     = mw.llama { layers = 2, hidden = 64, heads = 4, ffn = 176, vocab = 256 },
  data      = mw.text { "gcide", sequence = 64 },  -- a dictionary of English, as bytes
  batch     = 8,
  optimizer = mw.adamw { lr = 1e-3, clip = 1.0 },
  steps     = 2,
}
local function with(changes)
  for key, value in pairs(base) do changes[key] = value end
  return changes
end

print(mw.compare(
  with { plan = { dp(4) }, microbatch = 1, precision = "fp32" },
  with { plan = { tp(2) }, recompute = "full", precision = "bf16" }))
