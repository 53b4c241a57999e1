-- A hook was chosen by a bucket's bytes, of which float64 has twice as many: the plan was proved,
-- and the other plan that verify made of it was refused.
local mw = require "meshwright"
local dp, zero, ep = mw.plugins("dp", "zero", "ep")
local function hook(bucket) return bucket.bytes > 900 and "bf16" or "none" end

local function check(chosen, batch, plan)
  local experiment = {
    model = mw.moe {
      layers = 1, hidden = 8, heads = 4, vocab = 17, ffn = 9, tied = true,
      experts = 4, top_k = chosen,
    },
    data = mw.synthetic {},
    sequence = 8,
    plan = plan,
    batch = batch,
    optimizer = mw.sgd { lr = 0.1 },
    steps = 1,
  }
  local proof = mw.prove(experiment)
  assert(proof.verdict == "proved", proof.text)
  assert(mw.verify(experiment).verdict == "equal")
end
check(2, 16, {
  zero(2),
  mw.strategy { name = "s0", axis = {}, rules = { "hidden" } }(2),
  dp { 2, hook = hook },
  ep(2),
})
check(1, 4, {
  ep(2),
  dp { 4, bucket = 1, hook = hook },
  mw.directives { { "order", { phase = "backward" }, before = { phase = "gradients" } } },
})
