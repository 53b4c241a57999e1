-- A pass hoisted the second slice of an op above the first one, and the plan could not be proved.
local mw = require "meshwright"
local coshard = mw.plugins("coshard")
mw.verify {
  model = mw.llama { layers = 2, hidden = 8, heads = 4, vocab = 16, ffn = 8 },
  data = mw.synthetic {},
  sequence = 8,
  plan = {
    coshard { "seq", slices = 2, ops = { "ce_stats", "ce_loss" } },
    mw.pass { name = "p", edit = function(code)
      for i in code:each { code = "compute", op = "loss*" } do i:hoist { by = 3 } end
      for i in code:each { code = "compute", op = "loss*" } do i:hoist { by = 5 } end
    end },
  },
  batch = 1,
  optimizer = mw.sgd { lr = 0.1 },
  steps = 1,
}
