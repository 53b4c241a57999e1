-- What microbatches cost and hold: fixed sizes that divide a rank's sequences and such that do not,
-- the largest that fit three limits, a batch that grows, and a function of the step. Losses are
-- those of the batch, however it is split.
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

print("microbatch              loss at last   activations, MiB  predicted   peak, MiB   tokens/s  bubble, %")
local function row(name, microbatch)
  local result = run(microbatch)
  print(("%-22s %13.5f %18.2f %10.2f %11.2f %10.0f %10.1f"):format(name, result.losses[#result.losses],
        result.memory.activations / 2 ^ 20, result.predicted.memory[1].activations / 2 ^ 20,
        result.peak_bytes / 2 ^ 20, result.tokens_per_second, 100 * result.bubble_fraction))
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
