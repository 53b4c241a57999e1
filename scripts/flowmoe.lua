-- FlowMoE (Gao et al. 2025, NeurIPS, arXiv:2510.00207) as a schedule and a pass of a script. Two
-- microbatches share the device, so that one computes attention, gates and experts while the rows
-- of the other are on their way; and sums of gradients go in small chunks on the stream of these
-- exchanges, each behind the next exchange, so that no exchange waits for a sum.
-- `./meshwright plan scripts/flowmoe.lua`; verify and prove take the script too.
local mw         = require "meshwright"
local pp, dp, ep = mw.plugins("pp", "dp", "ep")

local pairs_of_microbatches = mw.schedule("flowmoe", function(s)
  local row = {}
  for m = 0, s.microbatches - 2, 2 do
    row[#row + 1] = ("0F%d+0F%d"):format(m, m + 1)
    row[#row + 1] = ("0B%d+0B%d"):format(m, m + 1)
  end
  return { table.concat(row, " ") }
end)

local behind = mw.pass {
  name = "chunks behind exchanges", segments = { "backward" },
  directives = { { "stream", { axis = { "dp", "ep" } }, "network" } },
  edit = function(code)
    local sums = {}
    for start in code:each { code = "start" } do
      if start.phase == "gradients" then
        sums[#sums + 1] = start
      elseif start.kind == "dispatch" or start.kind == "combine" then
        for _, sum in ipairs(sums) do sum:after(start) end
        sums = {}
      end
    end
  end,
}

local function step(plan)
  return mw.train {
    model = mw.moe { layers = 4, hidden = 256, heads = 4, kv_heads = 4, ffn = 512, vocab = 512, experts = 8, top_k = 2 },
    data = mw.synthetic {}, sequence = 256, plan = plan,
    batch = 16, microbatch = 1, optimizer = mw.adamw { lr = 1e-3 }, steps = 2,
    cluster = mw.cluster("dgx-a100-40", { nodes = 4, node = { devices = 2 } }), stack = mw.stack "megatron-core",
  }
end

local plain = step { dp { 8, bucket = "1GiB" }, ep(8) }                            -- one sum, all exchanges in the open
local flow  = step { pp { 1, schedule = pairs_of_microbatches }, dp { 8, bucket = "1MiB" }, ep(8), behind }
print(flow)
if plain.step_seconds and flow.step_seconds then
  print(("a step of %.2f ms, %.2f ms without"):format(1e3 * flow.step_seconds, 1e3 * plain.step_seconds))
end
