-- A sweep of 10,080 cells that are only predicted, no two of them with one plan: 4 to 40 layers,
-- seven mixes of 8 ranks. `time build/bin/meshwright run bench/predicted_cells.lua`, in a folder
-- that may be thrown away: it writes runs/predicted-cells.
local mw = require "meshwright"
local dp, zero, tp, sp, pp = mw.plugins("dp", "zero", "tp", "sp", "pp")

local function each(from, to, step)
  local list = {}
  for value = from, to, step do list[#list + 1] = value end
  return list
end

local sweep = mw.sweep {
  name = "predicted-cells",
  base = {
    model = mw.llama { layers = 4, hidden = 256, heads = 8, kv_heads = 8, ffn = 704, vocab = 512 },
    data = mw.synthetic {}, batch = 16, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 10,
    cluster = mw.cluster("dgx-a100-80", { nodes = 1 }),
  },
  over = {
    ["model.layers"] = each(4, 40, 4), ["model.ffn"] = each(512, 1152, 128), sequence = each(64, 432, 16),
    plan = {
      { dp(8) }, { tp(8) }, { dp(2), tp(4), sp() }, { zero { 8, stage = 3 } }, { zero { 4, stage = 1 }, tp(2) },
      { pp { 2, schedule = "1f1b" }, dp(4) }, { pp { 4, schedule = "zb-h1" }, dp(2) },
    },
  },
}
sweep:go { predict = true, quiet = true }
