-- What do attention's scores hold as sequences get longer, and what does selective recompute leave?
--
-- Attention that keeps its softmax for backward holds a number for each pair of tokens of each
-- head: the term 5as/h of Korthikanti et al. 2022 (arXiv:2205.05198, equation 1). Dropout's mask
-- and output are not made here, so that 2as/h remains in 16 bits. A fused kernel (Dao et al.
-- 2022, arXiv:2205.14135) never keeps them, and selective recompute makes them again in backward.
-- Bytes are of one rank's activations, predicted; those of the shortest sequence are measured.
local mw = require "meshwright"

local function experiment(sequence, attention, recompute)
  return {
    model     = mw.gpt { layers = 4, hidden = 128, heads = 8, vocab = 256, attention = attention },
    data      = mw.text { "gcide", sequence = sequence },
    plan      = {},
    batch     = 2,
    recompute = recompute,
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 2,
    threads   = 1,
  }
end

local forms = { { "flash", "none" }, { "unfused", "none" }, { "unfused", "selective" } }
local function held(sequence, form)
  return mw.plan(experiment(sequence, form[1], form[2])).memory[1].activations
end

print("tokens     flash, MiB   unfused, MiB   unfused, selective, MiB")
local rows = {}
for _, sequence in ipairs { 128, 512, 2048 } do
  local row = {}
  for n, form in ipairs(forms) do row[n] = held(sequence, form) end
  rows[#rows + 1] = row
  print(("%6d %14.2f %14.2f %25.2f"):format(sequence, row[1] / 2 ^ 20, row[2] / 2 ^ 20, row[3] / 2 ^ 20))
end

local off = 0
for n, form in ipairs(forms) do
  local result = mw.train(experiment(128, form[1], form[2]))
  off = math.max(off, math.abs(result.memory.activations - rows[1][n]))
end

print(("Answer: of 128 tokens attention that keeps its softmax holds %.2f times what a fused kernel holds, of 2048 tokens %.2f "
  .. "times; with selective recompute, which has one layer's at a time, it holds %.2f and %.2f times as much; measured is at "
  .. "most %d bytes off predicted."):format(
  rows[1][2] / rows[1][1], rows[3][2] / rows[3][1], rows[1][3] / rows[1][1], rows[3][3] / rows[3][1], off))
