-- The proof's lemma of `combine` was tried with more choices of a token than the op has built in:
-- experts were as many, and small ranks must part these evenly. A right plan was refused.
local mw = require "meshwright"
local dp, ep = mw.plugins("dp", "ep")
local proof = mw.prove {
  model = mw.moe { layers = 1, hidden = 8, heads = 4, vocab = 16, ffn = 8, experts = 3, top_k = 3 },
  data = mw.synthetic {},
  sequence = 8,
  plan = { dp(3), ep { 3, dispatch = "allgather" } },
  batch = 6,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
}
assert(proof.verdict == "proved", proof.text)
