-- The pipeline schedule @NAME@: in which order each stage computes. This one is 1F1B whose stages run
-- one forward further ahead; "2F0" is the forward of microbatch 0 through stage 2.
local mw = require "meshwright"
local pp = mw.plugins("pp")

local @NAME@ = mw.schedule("@NAME@", function(s)
  local order = {}
  for stage = 0, s.stages - 1 do
    local ahead = math.min(s.microbatches, s.stages - stage + 1)
    local row = {}
    for k = 0, s.microbatches + ahead - 1 do
      if k >= ahead then row[#row + 1] = ("%dB%d"):format(stage, k - ahead) end
      if k < s.microbatches then row[#row + 1] = ("%dF%d"):format(stage, k) end
    end
    order[stage + 1] = table.concat(row, " ")
  end
  return order
end)

mw.train {
  model = mw.llama { layers = 4, hidden = 16, heads = 4, ffn = 32, vocab = 32 },
  data  = mw.synthetic {}, sequence = 8,
  plan  = { pp { 2, schedule = @NAME@ } },
  batch = 8, microbatch = 1, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
