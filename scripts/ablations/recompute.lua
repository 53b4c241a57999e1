-- What does recompute save, and what does it cost? Activations, step time and hardware flops of
-- each mode, predicted beside measured; then the cheapest set within limits that the modes do not
-- know. And what remains where activations lie in host memory.
--
-- Of a layer's activations "full" keeps its input alone and makes the rest again, a third more work
-- than forward and backward (Chen et al. 2016, arXiv:1604.06174); "selective" leaves out what is
-- large and cheap (Korthikanti et al. 2022, arXiv:2205.05198). Memory and flops are those of any
-- machine; seconds are those of this one, predicted as if it did nothing else.
local mw     = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")

local function run(mode, offload)
  local result = mw.train {
    model     = mw.llama { layers = 8, hidden = 128, heads = 8, kv_heads = 4, ffn = 352, vocab = 256 },
    data      = mw.text { "gcide", sequence = 512 },
    plan      = { dp(2), tp(2) },
    batch     = 8,
    recompute = mode,
    offload   = offload or "none",
    optimizer = mw.adamw { lr = 1e-3 },
    steps     = 6,
    threads   = 1,
  }
  return tostring(result) and result            -- shown: not printed again at the end
end

print("recompute        activations, MiB  predicted   peak, MiB   s a step  predicted   flops over none")
local none
local function row(name, mode, offload)
  local result = run(mode, offload)
  local memory, p = result.predicted.memory[1], result.predicted
  none = none or p.hardware_flops_per_step
  print(("%-16s %16.2f %10.2f %11.2f %10.3f %10.3f %17.3f"):format(name, result.memory.activations / 2 ^ 20,
        memory.activations / 2 ^ 20, result.peak_bytes / 2 ^ 20, result.step_seconds, p.step_seconds,
        p.hardware_flops_per_step / none))
  return { activations = result.memory.activations, peak_bytes = result.peak_bytes, flops = p.hardware_flops_per_step / none,
           seconds = p.step_seconds, measured = result.step_seconds }
end

local kept = row("none", "none")
local some = row("selective", "selective")
local full = row("full", "full")
row("every 2 layers", { every = 2 })
row("mlp", { ops = { "mlp" } })
local away = row("offload", "none", "full")
row("full, offload", "full", "full")
local half
for _, share in ipairs { 0.75, 0.5, 0.25 } do   -- of the way from full to none
  local limit = math.floor(full.peak_bytes + share * (kept.peak_bytes - full.peak_bytes))
  local found = row(("fit %.1f MiB"):format(limit / 2 ^ 20), { fit = limit })
  if share == 0.5 then half = found end
end

local function costs(mode)
  return ("%.2f of the activations for %.2f times the flops (steps predicted %.2f times as long, measured %.2f)"):format(
    mode.activations / kept.activations, mode.flops, mode.seconds / kept.seconds, mode.measured / kept.measured)
end
print(("Answer: of what is kept without recompute, full keeps %s, selective %s, offload %s, and the cheapest set within half "
  .. "of what full saves %s."):format(costs(full), costs(some), costs(away), costs(half)))
