-- What do microbatches hold and cost? Fixed sizes that divide a rank's sequences and such that do
-- not, the largest that fit three limits, a batch that grows, and a function of the step. Losses
-- are those of the batch, however it is split.
--
-- A pipeline of p stages with m microbatches idles (p - 1)/(m + p - 1) of a step, and with 1F1B a
-- stage holds at most p of them (Narayanan et al. 2021, arXiv:2104.04473): small ones idle less and
-- hold less, and reach less of a device's peak, which these cores hardly show. Memory is that of
-- any machine, the predicted bubble that of ranks with a core each.
local mw     = require "meshwright"
local pp, dp = mw.plugins("pp", "dp")

local function run(microbatch)
  local result = mw.train {
    model      = mw.llama { layers = 4, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
    data       = mw.text { "gcide", sequence = 128 },
    plan       = { pp { ways = 2, schedule = "1f1b" }, dp(2) },
    batch      = 28,                            -- 14 sequences to each of two ranks
    microbatch = microbatch,
    optimizer  = mw.adamw { lr = 1e-3 },
    steps      = 6,
    threads    = 1,
  }
  return tostring(result) and result            -- shown: not printed again at the end
end

print("microbatch              loss at last   activations, MiB  predicted   peak, MiB   tokens/s  bubble, %  predicted")
local off = 0
local function row(name, microbatch)
  local result, held = run(microbatch), 0
  for _, stage in ipairs(result.predicted.memory) do held = math.max(held, stage.activations) end
  print(("%-22s %13.5f %18.2f %10.2f %11.2f %10.0f %10.1f %10.1f"):format(name, result.losses[#result.losses],
        result.memory.activations / 2 ^ 20, held / 2 ^ 20, result.peak_bytes / 2 ^ 20, result.tokens_per_second,
        100 * result.bubble_fraction, 100 * result.predicted.bubble_fraction))
  off = math.max(off, math.abs(result.memory.activations / held - 1))
  return result
end

local whole = row("all 14 at once")
row("7", 7)
row("4: 4 + 4 + 4 + 2", 4)
row("a list: 5, 5, 3, 1", { 5, 5, 3, 1 })
local small = row("1", 1)
for _, share in ipairs { 0.75, 0.5, 0.25 } do   -- of the way from the smallest to all at once
  local limit = math.floor(small.peak_bytes + share * (whole.peak_bytes - small.peak_bytes))
  row(("fit %.1f MiB"):format(limit / 2 ^ 20), mw.microbatch.fit { memory = limit })
end
row("ramp from 4", mw.microbatch.ramp { from = 4, by = 8, steps = 4, size = 2 })
row("function", function(step) return step < 3 and 7 or { 4, 4, 6 } end)

local function last(result) return result.losses[#result.losses] end
print(("Answer: one microbatch of 14 sequences holds %.1f MiB a rank and idles %.1f %% of a step by prediction, 14 of one "
  .. "sequence hold %.1f MiB and idle %.1f %%; their last losses are %.0e apart, and activations were measured within %.1f %% "
  .. "of predicted in each case."):format(whole.peak_bytes / 2 ^ 20, 100 * whole.predicted.bubble_fraction,
  small.peak_bytes / 2 ^ 20, 100 * small.predicted.bubble_fraction, math.abs(last(whole) - last(small)), 100 * off))
