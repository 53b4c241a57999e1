-- A directive put instructions between the copy of a shard from host memory and the all-gather of
-- it. In a braid the lane that had made the copy was taken to have begun the all-gather too, and
-- another lane waited for it before.
local mw = require "meshwright"
local zero, pp = mw.plugins("zero", "pp")
local experiment = {
  model = mw.llama { layers = 2, hidden = 8, heads = 4, vocab = 16, ffn = 16, tied = true },
  data = mw.synthetic {},
  sequence = 8,
  plan = {
    zero { 2, stage = 3, offload = "parameters" },
    pp { 3, schedule = { kind = "1f1b", pair = true } },
    mw.directives { { "budget", { move = "all-gather", optional = true }, 1 } },
  },
  batch = 6,
  optimizer = mw.adamw { lr = 0.001 },
  steps = 1,
  microbatch = 2,
}
local proof = mw.prove(experiment)
assert(proof.verdict == "proved", proof.text)
assert(mw.verify(experiment).verdict == "equal")
