-- A pipeline schedule of one's own: 1F1B whose stages run ahead by up to twice as many forwards, so
-- that activations travel while the receiver still computes ("eager 1F1B", Zhuang et al. 2022). It
-- pays with memory: 2(p - i) - 1 microbatches on stage i, against p - i.
local mw     = require "meshwright"
local pp, dp = mw.plugins("pp", "dp")

local eager = mw.schedule("eager-1f1b", function(s)
  local order = {}
  for stage = 0, s.stages - 1 do
    local ahead = math.min(s.microbatches, 2 * (s.stages - stage) - 1)
    local row = {}
    for k = 0, s.microbatches + ahead - 1 do
      if k >= ahead then row[#row + 1] = ("%dB%d"):format(stage, k - ahead) end
      if k < s.microbatches then row[#row + 1] = ("%dF%d"):format(stage, k) end
    end
    order[stage + 1] = table.concat(row, " ")
  end
  return order                               -- { "0F0 0F1 0F2 0B0 0F3 …", "1F0 1B0 1F1 …" }
end)

print(mw.train {
  model      = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
  data       = mw.text { "gcide", sequence = 128 },
  plan       = { pp { ways = 2, schedule = eager }, dp(2) },
  batch      = 16,
  microbatch = 1,                            -- 8 microbatches of each of the two parts
  optimizer  = mw.adamw { lr = 3e-3, clip = 1.0 },
  steps      = 20,
  log        = "runs/my_schedule.h5",
})
