-- Weight gradients of an op in slices were brought from W to collectives of I one by one, each
-- before the one that was brought last: their order was turned round, and the plan was refused.
local mw = require "meshwright"
local tp, pp, coshard, sp = mw.plugins("tp", "pp", "coshard", "sp")
local heads = mw.strategy { name = "heads", axis = { name = "a", role = "model" }, rules = { "heads", "kv_heads" } }
local proof = mw.prove {
  model = mw.llama { layers = 2, hidden = 8, heads = 4, vocab = 16, ffn = 16 },
  data = mw.synthetic {},
  sequence = 16,
  plan = { pp { 2, schedule = "zb-h1" }, tp { 2, overlap = true }, heads(2), sp {},
    coshard { "ffn", slices = 2, recompute = false } },
  batch = 4,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
  microbatch = 1,
}
assert(proof.verdict == "proved", proof.text)
