-- The plan of a row of a published table: sizes, ways and what its software did, as keys of a
-- table; `changes` of devices, stacks, nodes and networks on top of them.
local mw                       = require "meshwright"
local pp, dp, tp, sp, zero, ep = mw.plugins("pp", "dp", "tp", "sp", "zero", "ep")

local device_of = { selene = "a100", vtrain = "a100", ["dgx-a100-80"] = "a100", ["dgx-a100-40"] = "a100",
  ["dgx-h100"] = "h100", ["dgx-h100-llama3"] = "h100" }

-- Software that gathers updated parameters beside the next step's forward.
local gathers_ahead = { ["megatron-core"] = true, llama3 = true, maxtext = true, ["deepseek-v3"] = true,
  fsdp2 = true, ["fsdp2-eager"] = true, ["nvidia-2025"] = true, ["nvidia-2025-fp8"] = true }

local function both(one, other)
  local all = {}
  for _, keys in ipairs { one or {}, other or {} } do
    for key, value in pairs(keys) do all[key] = value end
  end
  return all
end

-- `changes.without` names a key that is taken out: { "stack", "host" }, or
-- { "cluster", "node", "latency" }.
local function machine(row, ranks, changes)
  local described = {
    cluster = mw.cluster(row.cluster, {
      nodes = (ranks + 7) // 8, device = both(row.device, changes[device_of[row.cluster]]),
      node = changes.node or {}, network = both(row.network, changes.network),
    }),
    stack = mw.stack(row.stack, both(row.software, changes[row.stack])),
  }
  if changes.without then
    local within, last = described, #changes.without
    for k = 1, last - 1 do within = within[changes.without[k]] end
    within[changes.without[last]] = nil
  end
  return described.cluster, described.stack
end

return function(row, changes)
  local plan = {}
  if row.pp > 1 then
    local chunks = row.chunks or 1
    plan[#plan + 1] = pp { row.pp, schedule = row.schedule or chunks > 1 and "interleaved" or "1f1b",
      chunks = chunks > 1 and chunks or nil, layout = row.layout or "even" }
  end
  if row.zero then
    if row.dp > 1 or row.over_sequence then
      local overlap_gather = nil
      if row.zero < 3 then overlap_gather = gathers_ahead[row.stack] or false end
      plan[#plan + 1] = zero { row.dp, stage = row.zero, replicas = row.replicas,
        bucket = row.zero < 3 and "256MiB" or nil, overlap_gather = overlap_gather, sequence = row.over_sequence }
    end
  elseif row.dp > 1 then
    plan[#plan + 1] = dp { row.dp, overlap = row.overlap or false, bucket = "256MiB" }
  end
  if row.cp and row.cp > 1 then plan[#plan + 1] = sp { row.cp, form = row.cp_form or "allgather" } end
  if row.tp > 1 then plan[#plan + 1] = tp { row.tp, overlap = row.async } end
  if row.sp then plan[#plan + 1] = sp() end
  if row.ep then plan[#plan + 1] = ep(row.ep) end
  local cluster, stack = machine(row, row.tp * row.pp * row.dp * (row.cp or 1), changes or {})
  return mw.plan {
    model = row.model, data = mw.synthetic {}, sequence = row.sequence, plan = plan,
    batch = row.batch, microbatch = row.microbatch, precision = "bf16",
    main_gradients = row.fp32_gradients and "fp32" or "compute", recompute = row.recompute or "none",
    optimizer = mw.adamw { lr = 1e-4 }, steps = 1, cluster = cluster, stack = stack,
  }
end
