-- Published memory of a device, beside what plans of this project's own take: rows of
-- { name, predicted, published, unit, exact = whether it is what was printed, to its last digit }.
local mw                   = require "meshwright"
local pp, tp, sp, zero, dp = mw.plugins("pp", "tp", "sp", "zero", "dp")

local GiB = 2 ^ 30
local memory = {}

-- Rajbhandari et al. 2020, "ZeRO", table 1: bytes of model states, in a mix of 2 + 2 + 12 a
-- parameter. A small model's bytes for each parameter hold for one of any size.
function memory.zero1(csv)
  local rows, share = {}, {}
  local function of(ways, stage)
    local key = ways .. " " .. stage
    if not share[key] then
      local plan = mw.plan {
        model = mw.gpt { layers = 4, hidden = 1024, heads = 16, vocab = 8192 }, data = mw.synthetic {}, sequence = 1024,
        plan = { ways > 1 and zero { ways, stage = stage } or dp(1) }, batch = ways, microbatch = 1, precision = "fp16",
        main_gradients = "compute", optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
        cluster = mw.cluster("dgx-v100", { nodes = (ways + 7) // 8 }),
      }
      local stage_ = plan.memory[1]
      share[key] = (stage_.parameters + stage_.gradients + stage_.optimizer) / plan.parameters
    end
    return share[key]
  end
  for _, r in ipairs(csv "zero_table1") do
    for stage, suffix in ipairs { "os", "os_g", "os_g_p" } do
      for _, size in ipairs { { "7.5B", 7.5 }, { "128B", 128 }, { "1T", 1000 } } do
        local printed = tostring(r[size[1] .. "_" .. suffix])
        local published = tonumber(printed)
        local predicted = of(r.dp, stage) * size[2]
        -- Some of its numbers are rounded, some cut off.
        local digits = #(printed:match "%.(%d+)$" or "")
        if digits == 1 and printed:find "%.0$" then digits = 0 end
        rows[#rows + 1] = {
          name = ("%s, stage %d on %d"):format(size[1], stage, r.dp), predicted = predicted, published = published,
          unit = "GB", exact = math.abs(predicted - published) < 10 ^ -digits,
        }
      end
    end
  end
  return rows
end

-- Korthikanti et al. 2022, figures 1 and 7: parameters with gradients and optimizer state, and
-- activations with sequence parallelism and selective recompute, of the first stage.
function memory.korthikanti(csv)
  local rows, shapes = {}, {}
  for _, r in ipairs(csv "korthikanti2022_table5") do shapes[r.model] = shapes[r.model] or r end
  for _, r in ipairs(csv "korthikanti2022_memory") do
    local c = shapes[r.model]
    local mix = { tp(8), sp() }
    if c.pp > 1 then
      table.insert(mix, 1, pp { c.pp, schedule = c.m > 1 and "interleaved" or "1f1b", chunks = c.m > 1 and c.m or nil })
    end
    local plan = mw.plan {
      model = mw.gpt { layers = c.layers, hidden = c.hidden, heads = c.heads, vocab = 51200 }, data = mw.synthetic {},
      sequence = 2048, plan = mix, batch = c.gbs, microbatch = c.mbs, precision = "bf16", main_gradients = "fp32",
      recompute = { what = "selective", gathers = true }, optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
      cluster = mw.cluster("selene", { nodes = c.pp }), stack = mw.stack "megatron-2022",
    }
    -- Its states are those of layers alone, as a stage between the first and the last has them.
    local first, between = plan.memory[1], plan.memory[c.pp > 2 and 2 or 1]
    local state = (between.parameters + between.gradients + between.optimizer) / GiB
    local activations = first.activations / GiB
    for _, row in ipairs {
      { "model state", state, r.par_opt_gib }, { "activations", activations, r.act_seqsel_gib },
      { "both", state + activations, r.par_opt_gib + r.act_seqsel_gib },
    } do
      rows[#rows + 1] = { name = r.model .. ": " .. row[1], predicted = row[2], published = row[3], unit = "GiB",
        kind = row[1] }
    end
  end
  return rows
end

return memory
