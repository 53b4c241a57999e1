-- Pitfall: plain data parallelism for a model of 10 billion parameters. What does a rank have to
-- hold, and what does it cost to make it fit?
--
-- In bf16 with AdamW a parameter takes 2 bytes, its gradient 2, and the optimizer's master and
-- two averages 12. dp keeps all 16 on every rank, so more ranks help nothing but activations.
-- ZeRO keeps of N ranks' worth one (Rajbhandari et al. 2020, arXiv:1910.02054): stage 1 parts
-- the 12, stage 2 the gradients too, stage 3 the parameters too. Stages 1 and 2 send what dp's
-- all-reduce sends, 2 (N - 1)/N of the gradients' bytes; stage 3 gathers parameters once more
-- for backward, which makes it nearly 3/2.
--
-- Nothing is trained: bytes are those of a plan for 64 A100 of 80 GB, for one microbatch a step;
-- stages 2 and 3 reduce, and stage 3 gathers, in every microbatch.
local mw       = require "meshwright"
local dp, zero = mw.plugins("dp", "zero")

local device = 80e9                              -- bytes of one A100 or H100 of 80 GB, by its data sheet
local ranks  = 64

local function plan(strategy)
  local result = mw.plan {
    model     = mw.llama { layers = 40, hidden = 4096, heads = 32, kv_heads = 8, ffn = 14336, vocab = 128256 },
    data      = mw.synthetic {}, sequence = 4096,
    plan      = { strategy },
    batch     = ranks, microbatch = 1,
    recompute = "full",                          -- of activations a rank keeps one tensor a layer
    precision = "bf16",
    optimizer = mw.adamw { lr = 3e-4 },
    steps     = 1,
    cluster   = mw.cluster("dgx-a100-80", { nodes = ranks // 8 }),  -- kernels' scratch is its devices'
  }
  return tostring(result) and result             -- shown: not printed again at the end
end

local function sent(result)
  local bytes = 0
  for _, use in ipairs(result.communication) do bytes = bytes + use.bytes end
  return bytes
end

local mixes = { { "dp", plan(dp(ranks)) } }
for stage = 1, 3 do mixes[#mixes + 1] = { "ZeRO " .. stage, plan(zero { ranks, stage = stage }) } end

print(("%d ranks, GB a rank; a device has %.0f"):format(ranks, device / 1e9))
print("         parameters  gradients  optimizer  activations  buffers    peak   sent a step")
for _, mix in ipairs(mixes) do
  local name, result = mix[1], mix[2]
  local m = result.memory[1]
  print(("%-8s %10.1f %10.1f %10.1f %12.1f %8.1f %7.1f %13.1f"):format(name, m.parameters / 1e9, m.gradients / 1e9,
        m.optimizer / 1e9, m.activations / 1e9, m.buffers / 1e9, m.peak / 1e9, sent(result) / 1e9))
end

local plain, full = mixes[1][2], mixes[#mixes][2]
local states = plain.memory[1].parameters + plain.memory[1].gradients + plain.memory[1].optimizer
local cure
for _, mix in ipairs(mixes) do
  if not cure and mix[2].memory[1].peak <= device then cure = mix end
end
local function costs(result)
  return ("%.1f GB a rank and sends %.1f GB a step, %.2f times dp's"):format(result.memory[1].peak / 1e9,
    sent(result) / 1e9, sent(result) / sent(plain))
end
print(("Mistake: with plain dp each rank of a model of %.2f billion parameters needs %.1f GB, %.2f times a device's; "
  .. "%.1f GB of it are states, %.1f bytes a parameter, on every rank."):format(plain.parameters / 1e9,
  plain.memory[1].peak / 1e9, plain.memory[1].peak / device, states / 1e9, states / plain.parameters))
print((cure and "Cure: the first that fits is " .. cure[1] .. ", which needs " .. costs(cure[2]) .. "; "
  or "Cure: none of them fits; ") .. "ZeRO 3 needs " .. costs(full) .. ".")
