-- What `meshwright bench prediction` runs: every row of the tables of this folder as a plan of this
-- project's own, priced for the cluster and the stack that it was measured on; predicted beside
-- published. Arguments: names of tables (all if none is given), "rows" for each row, "json" for a
-- line of JSON a row, every=5 for a fifth of each long table, and changes for fits: of a device or
-- a stack, such as h100.gemm=0.62 or megatron-core.hidden_model=0.6, and of every cluster's node or
-- network, such as network.share=0.9. The word "ablate" asks what each key of the stacks and
-- clusters that are named, or of all, moves (ablate.lua). The word "measured" alone prints what was
-- measured under each stack, as clusters/software/measured.lua has it.
local mw      = require "meshwright"
local folder  = arg[0]:match "^(.*)/" or "."
local memory, ranking = dofile(folder .. "/memory.lua"), dofile(folder .. "/ranking.lua")
local aside   = dofile(folder .. "/aside.lua")
local mpt     = dofile(folder .. "/mpt.lua")
local nvidia  = dofile(folder .. "/nvidia.lua")
local plan_of = dofile(folder .. "/plan_row.lua")

local function csv(name)
  local rows, keys = {}, nil
  for line in io.lines(folder .. "/" .. name .. ".csv") do
    local cells = {}
    for cell in (line:gsub("\r", "") .. ","):gmatch "([^,]*)," do cells[#cells + 1] = cell end
    if not keys then
      keys = cells
    else
      local row = {}
      for i, key in ipairs(keys) do row[key] = tonumber(cells[i]) or cells[i] end
      rows[#rows + 1] = row
    end
  end
  return rows
end

-- --- What is asked for ---

local wanted, changes, each, json, any, ablate, every = {}, {}, false, false, false, false, 1
for _, word in ipairs(arg) do
  local of, key, value = word:match "^([%w%-]+)%.([%w_]+)=(.+)$"
  if of then
    changes[of] = changes[of] or {}
    changes[of][key] = load("return " .. value)()
  elseif word:match "^every=%d+$" then
    every = math.max(1, tonumber(word:match "%d+"))
  elseif word == "rows" then
    each = true
  elseif word == "json" then
    json = true
  elseif word == "ablate" then
    ablate = true
  else
    wanted[word], any = true, true
  end
end

-- What is changed of nvidia-2025 is so of its fp8 too, which has but a few keys of its own.
if changes["nvidia-2025"] then
  local own = changes["nvidia-2025-fp8"] or {}
  changes["nvidia-2025-fp8"] = own
  for key, value in pairs(changes["nvidia-2025"]) do
    if key ~= "products" and own[key] == nil then own[key] = value end
  end
end

-- A step's seconds; nil and why, where there is no such plan.
local function seconds(row)
  local good, result = pcall(plan_of, row, changes)
  if not good and tostring(result):find "interrupted" then error(result, 0) end
  if not good then return nil, tostring(result) end
  return result.step_seconds, nil, result
end

local function gpt(hidden, heads, layers, vocab)
  return mw.gpt { hidden = hidden, heads = heads, layers = layers, vocab = vocab }
end

-- --- The tables: rows, and the seconds of a step that was measured ---

local tables = {}
local function add(name, rows) tables[#tables + 1] = { name = name, rows = rows } end

-- Narayanan et al. 2021, equation 3: operations with full recompute.
local function flops_recomputed(B, s, l, h, V) return 96.0 * B * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h)) end

-- Microbatch and interleave are those of Megatron-LM's examples/sc21/run_table_1.sh, where they are
-- published; where not, what fits.
local sc21 = {
  [1.7] = { 16, 1 }, [3.6] = { 16, 1 }, [7.5] = { 16, 1 }, [18.4] = { 8, 1 }, [39.1] = { 4, 1 }, [76.1] = { 2, 3 },
  [145.6] = { 2, 2 }, [310.1] = { 1, 2 }, [529.6] = { 1, 3 }, [1008.0] = { 1, 1 },
}

local function korthikanti5()
  local rows = {}
  for _, r in ipairs(csv "korthikanti2022_table5") do
    for _, kind in ipairs { "full", "selective" } do
      local column = kind == "full" and "iter_full_s" or "iter_present_s"
      if type(r[column]) == "number" then
        rows[#rows + 1] = {
          name = r.model .. " " .. kind, published = r[column], cluster = "selene", stack = "megatron-2022",
          model = gpt(r.hidden, r.heads, r.layers, 51200), sequence = 2048, batch = r.gbs, microbatch = r.mbs,
          tp = 8, pp = r.pp, dp = r.gpus // 8 // r.pp, chunks = r.m, sp = kind == "selective",
          recompute = kind, fp32_gradients = true, async = true,
        }
      end
    end
  end
  return rows
end

local function narayanan1()
  local rows = {}
  for _, r in ipairs(csv "narayanan2021_table1") do
    local known = sc21[r.params_B]
    rows[#rows + 1] = {
      name = r.params_B .. "B", cluster = "selene", stack = "megatron-2021",
      published = flops_recomputed(r.batch, 2048, r.layers, r.hidden, 51200) / (r.gpus * r.tflops_gpu * 1e12),
      model = gpt(r.hidden, r.heads, r.layers, 51200), sequence = 2048, batch = r.batch, microbatch = known[1],
      tp = r.tp, pp = r.pp, dp = r.gpus // r.tp // r.pp, chunks = known[2], recompute = "full",
      fp32_gradients = true, overlap = r.pp == 1,
    }
  end
  return rows
end

local function narayanan2(scheme)
  local rows = {}
  for _, r in ipairs(csv "narayanan2021_table2") do
    local h, l, a, p = 20480, 105, 128, 35
    if r.params_B < 200 then h, l, a, p = 12288, 96, 96, 12 end
    local row = {
      name = ("%sB on %d"):format(r.params_B, r.gpus), cluster = "selene", model = gpt(h, a, l, 51200),
      published = flops_recomputed(r.batch, 2048, l, h, 51200) / (r.gpus * r.tflops_gpu * 1e12),
      sequence = 2048, batch = r.batch, microbatch = r.mbs, recompute = "full",
    }
    if r.scheme == "ptdp" then
      row.stack, row.tp, row.pp, row.dp, row.fp32_gradients = "megatron-2021", 8, p, r.gpus // 8 // p, true
    else
      row.stack, row.tp, row.pp, row.dp, row.zero = "zero3-2021", 1, 1, r.gpus, 3
    end
    if r.scheme == scheme then rows[#rows + 1] = row end
  end
  return rows
end

local function vtrain(file)
  local rows = {}
  for _, r in ipairs(csv(file)) do
    rows[#rows + 1] = {
      name = ("h%d l%d on %d: batch %d, microbatch %d, tp %d, dp %d, pp %d"):format(r["hidden size"], r["# layers"],
        r["# GPUs"], r["global batch"], r["micro batch"], r["tensor parallelism"], r["data parallelism"],
        r["pipeline parallelism"]),
      group = ("h%d l%d on %d, batch %d"):format(r["hidden size"], r["# layers"], r["# GPUs"], r["global batch"]),
      published = r["iteration time (ms)"] / 1e3, cluster = "vtrain", stack = "vtrain",
      model = gpt(r["hidden size"], r["attention heads"], r["# layers"], 51200), sequence = r["sequence length"],
      batch = r["global batch"], microbatch = r["micro batch"], tp = r["tensor parallelism"],
      dp = r["data parallelism"], pp = r["pipeline parallelism"], recompute = "full",
    }
  end
  return rows
end

-- Microbatch and interleave are not published: by one rule for every row, the fastest by prediction
-- that fits 80 GB (of microbatches 1, 2, 4 and of chunks that divide a stage's layers).
local mcore_choice = {
  [1.7] = { 4, 1 }, [7.1] = { 4, 1 }, [16] = { 4, 1 }, [32] = { 4, 1 }, [70] = { 2, 42 }, [119] = { 2, 23 },
  [177] = { 2, 16 }, [314] = { 1, 12 }, [462] = { 1, 7 },
}

local function mcore()
  local rows = {}
  for _, r in ipairs(csv "megatron_core_h100") do
    local B, s, l, h, V = r.batch, 4096, r.layers, r.hidden, 131072
    local flops = 72.0 * B * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h))
    local choice = mcore_choice[r.params_B]
    rows[#rows + 1] = {
      name = r.params_B .. "B", published = flops / (r.gpus * r.tflops_gpu * 1e12), cluster = "dgx-h100",
      stack = "megatron-core", model = gpt(h, r.heads, l, V), sequence = s, batch = B, microbatch = choice[1],
      chunks = choice[2], tp = r.tp, pp = r.pp, dp = r.dp, zero = 1, sp = r.tp > 1, fp32_gradients = true,
    }
  end
  return rows
end

local function llama3()
  local rows = {}
  -- One layer less on the first and on the last of 128 virtual stages (Grattafiori et al. 2024,
  -- section 3.3.2).
  local layout = {}
  for k = 1, 128 do layout[k] = (k == 1 or k == 128) and 0 or 1 end
  for i, r in ipairs(csv "llama3_table4") do
    local ways = i == 3 and 8 or r.dp
    local B, s = r.batch_per_dp * ways, r.seq
    local flops = 1.0 * B * s * (6 * 405e9 + 6 * 126 * 16384 * s)
    rows[#rows + 1] = {
      name = ("cp %d on %d"):format(r.cp, r.gpus), published = flops / (r.gpus * r.tflops_gpu * 1e12),
      cluster = "dgx-h100-llama3", stack = "llama3",
      model = mw.llama { layers = 126, hidden = 16384, heads = 128, kv_heads = 8, ffn = 53248, vocab = 128256 },
      sequence = s, batch = B, microbatch = 1, tp = 8, pp = 16, dp = ways, cp = r.cp > 1 and r.cp or nil, zero = 1,
      sp = true, chunks = 8, layout = layout, fp32_gradients = true,
    }
  end
  return rows
end

add("korthikanti5", korthikanti5)
add("narayanan1", narayanan1)
add("narayanan2-ptdp", function() return narayanan2 "ptdp" end)
add("narayanan2-zero3", function() return narayanan2 "zero3" end)
add("megatron-core", mcore)
add("llama3", llama3)
add("mpt-a100", function() return mpt(csv "mpt_fsdp", false, "dgx-a100-80") end)
add("mpt-h100", function() return mpt(csv "mpt_fsdp", true, "dgx-h100") end)
add("nvidia-2025", function() return nvidia(csv "nvidia_2025", true) end)
add("vtrain-multi", function() return vtrain "vtrain_multi_node" end)
add("vtrain-single", function() return vtrain "vtrain_single_node" end)

-- Rows that no share was fitted by: judged with the same settings.
for _, table_ in ipairs(aside(csv)) do
  table_.aside = true
  tables[#tables + 1] = table_
end

if ablate then
  dofile(folder .. "/ablate.lua")(mw, tables, plan_of, wanted)
  return
end

if wanted.measured then
  print(dofile(folder .. "/measured.lua")(tables))
  return
end

-- Memory comes last, in tables of its own.
local memories = { { name = "zero1-memory", rows = memory.zero1 }, { name = "korthikanti-memory", rows = memory.korthikanti } }

-- --- What comes out ---

local function median(list)
  if #list == 0 then return 0 end
  table.sort(list)
  return (list[(#list + 1) // 2] + list[#list // 2 + 1]) / 2
end

local function line(text, ...) if not json then print(text:format(...)) end end

local function report(table_, row, unit)
  if not json then return end
  print(('{"table":"%s","row":"%s","group":"%s","predicted":%s,"published":%s,"unit":"%s","kept_aside":%s}'):format(
    table_.name, row.name, row.group or "", row.predicted and ("%.9g"):format(row.predicted) or "null",
    row.published and ("%.9g"):format(row.published) or "null", unit, table_.aside and "true" or "false"))
end

-- Of the groups of plans for one model, batch and number of devices that have so many plans.
local function tell_ranking(rows)
  local groups, names = {}, {}
  for _, row in ipairs(rows) do
    if row.group and row.predicted then
      if not groups[row.group] then
        groups[row.group] = { {}, {} }
        names[#names + 1] = row.group
      end
      table.insert(groups[row.group][1], row.predicted)
      table.insert(groups[row.group][2], row.published)
    end
  end
  local told, least, most = 0, 1, 0
  for _, name in ipairs(names) do
    local predicted, published = table.unpack(groups[name])
    if #predicted >= 8 then
      local spearman, regret = ranking.spearman(predicted, published), ranking.regret(predicted, published)
      told, least, most = told + 1, math.min(least, spearman), math.max(most, regret)
      if each or #names <= 4 then
        line("  %-40s %3d plans: Spearman %.3f, regret %.1f %%", name, #predicted, spearman, 100 * regret)
      end
    end
  end
  if told > 0 then
    line("  ranking in %d groups of 8 plans or more: Spearman at least %.3f, regret at most %.1f %%", told, least,
      100 * most)
  end
end

-- What a row's plan says in the table's unit: seconds of a step, how many times as fast as another
-- plan's, bytes that are reported of the fullest rank.
local function told(row, unit)
  local predicted, why, result = seconds(row)
  if not predicted then return nil, why end
  if unit == "GiB" then
    local bytes = result.reported_bytes
    for _, name in ipairs(row.uncounted or {}) do bytes = bytes - (result.beside_program[name] or 0) end
    return bytes / 2 ^ 30, nil, result
  end
  if unit ~= "x" then
    -- Published as MFU: of the plan's own operations.
    row.published = row.published or result.flops_per_step / (row.mfu * row.gpus * 989e12)
    return predicted, nil, result
  end
  local other = seconds(row.than)
  if not other then return nil, "no plan of the other" end
  return other / predicted, nil, result
end

local names, known = {}, {}
for _, list in ipairs { tables, memories } do
  for _, table_ in ipairs(list) do
    names[#names + 1], known[table_.name] = table_.name, true
  end
end
for name in pairs(wanted) do
  if not known[name] then
    error(('there is no table "%s"; there are %s'):format(name, table.concat(names, ", ")), 0)
  end
end

line("%-18s %5s %8s %8s %8s %8s", "table", "rows", "mean", "median", "max", "bias")
local kept_aside = false
for _, table_ in ipairs(tables) do
  if not any or wanted[table_.name] then
    if table_.aside and not kept_aside then
      line("kept aside: no share was fitted by these")
      kept_aside = true
    end
    local unit = table_.unit or "s"
    local errors, sum, bias, most, failed = {}, 0, 0, 0, 0
    local rows = table_.rows()
    if #rows > 30 and every > 1 then
      local some = {}
      for i = 1, #rows, every do some[#some + 1] = rows[i] end
      rows = some
    end
    for _, row in ipairs(rows) do
      local why, result
      row.predicted, why, result = told(row, unit)
      if row.predicted then
        local error_ = row.predicted / row.published - 1
        errors[#errors + 1] = math.abs(error_)
        sum, bias, most = sum + math.abs(error_), bias + error_, math.max(most, math.abs(error_))
        if each then
          line("  %-70s %9.3f %s %9.3f %s published %+6.1f %%  bubble %4.1f %%  %s", row.name, row.predicted, unit,
            row.published, unit, 100 * error_, 100 * result.bubble_fraction,
            not result.fits and "does not fit" or result.nearly_full and "nearly full" or "")
        end
      else
        failed = failed + 1
        line("  %-40s no plan: %s", row.name, why)
      end
      report(table_, row, unit)
    end
    local n = math.max(#errors, 1)
    line("%-18s %5d %6.1f %% %6.1f %% %6.1f %% %+6.1f %%%s", table_.name, #errors, 100 * sum / n, 100 * median(errors),
      100 * most, 100 * bias / n, failed > 0 and ("  (%d rows without a plan)"):format(failed) or "")
    tell_ranking(rows)
  end
end
for _, table_ in ipairs(memories) do
  if not any or wanted[table_.name] then
    local errors, bias, most, exact = {}, 0, 0, 0
    for _, row in ipairs(table_.rows(csv)) do
      local error_ = row.predicted / row.published - 1
      errors[#errors + 1] = math.abs(error_)
      bias, most, exact = bias + error_, math.max(most, math.abs(error_)), exact + (row.exact and 1 or 0)
      if each then
        line("  %-70s %9.3f %s %8.3f %s published %+6.1f %%", row.name, row.predicted, row.unit, row.published, row.unit,
          100 * error_)
      end
      report(table_, row, row.unit)
    end
    local sum, n = 0, #errors
    for _, error_ in ipairs(errors) do sum = sum + error_ end
    line("%-18s %5d %6.1f %% %6.1f %% %6.1f %% %+6.1f %%%s", table_.name, n, 100 * sum / n, 100 * median(errors),
      100 * most, 100 * bias / n, exact > 0 and ("  (%d as printed, to the last digit)"):format(exact) or "")
  end
end
