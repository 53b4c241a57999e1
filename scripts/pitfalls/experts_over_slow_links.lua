-- Pitfall: experts spread so wide that their exchanges leave the machine. How many bytes go over
-- the slow links, and how long do they take there?
--
-- A token's hidden state goes to its top_k experts and comes back, in each layer, forward and
-- backward (and there once more where forward is made again): T top_k h (n - 1)/n elements a way
-- for T tokens of a rank and ep(n) (Lepikhin et al. 2020, arXiv:2006.16668). That hardly depends
-- on n. What does is where it goes: with 8 devices in a machine and n > 8, n - 8 of a rank's n -
-- 1 partners are elsewhere, and all its layers wait for them. Within a machine nothing leaves it
-- but the gradients and updates of experts that several machines have a copy of, once a step,
-- whatever the microbatches. What it costs is memory: more experts on each rank.
--
-- Bytes are those of the plan and hold for any cluster, if tokens choose evenly. Seconds are
-- predicted, for eight machines of eight H800 (clusters/h800.lua) and exchanges as they are here:
-- every choice of a token is sent by itself. DeepSeek-V3's send a token once to each machine and
-- on from there (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2), which the stack of that name
-- prices. What is left hides beside the compute of another microbatch in a pipeline of pairs
-- (scripts/pairs.lua): so wide exchanges can be had.
local mw       = require "meshwright"
local zero, ep = mw.plugins("zero", "ep")

local ranks, machine = 64, 8

local function plan(ways, stack)
  local result = mw.plan {
    -- DeepSeekMoE 16B (Dai et al. 2024, arXiv:2401.06066).
    model     = mw.moe { layers = 28, hidden = 2048, heads = 16, ffn = 10944, vocab = 102400, experts = 64, top_k = 6,
                         expert_ffn = 1408, shared_experts = 2, dense_layers = 1 },
    data      = mw.synthetic {}, sequence = 4096,
    plan      = { zero { ranks, stage = 1 }, ep(ways) },
    batch     = 4 * ranks, microbatch = 1,
    recompute = "full",
    precision = "bf16",
    optimizer = mw.adamw { lr = 3e-4 },
    steps     = 1,
    cluster   = mw.cluster("h800", { nodes = ranks // machine }),
    stack     = mw.stack(stack or "meshwright"),
  }
  return tostring(result) and result             -- shown: not printed again at the end
end

local function exchanges(result)
  local bytes, seconds, copies, late = 0, 0, 0, 0
  for _, use in ipairs(result.communication) do
    if use.axis == "ep" then bytes, seconds = bytes + use.bytes, seconds + use.exposed_seconds end
    -- Of ranks that hold the same experts.
    if use.axis == "zero.0" then copies, late = copies + use.bytes, late + use.seconds end
  end
  return bytes, seconds, copies, late
end

print(("%d H800, %d in a machine; GB of a rank and step, seconds as predicted"):format(ranks, machine))
print("     GB held   exchanged   of it outside   exposed, s   between copies of experts   s   step, s")
local rows = {}
for _, ways in ipairs { 8, 16, 32, 64 } do
  local result = plan(ways)
  local bytes, seconds, copies, late = exchanges(result)
  local leaves = bytes * math.max(0, ways - machine) / (ways - 1)
  local row = { ways = ways, held = result.memory[1].peak, exchanged = bytes, leaves = leaves, seconds = seconds,
                copies = copies, late = late, step = result.step_seconds }
  rows[#rows + 1] = row
  print(("ep %-2d %7.1f %11.1f %15.1f %12.3f %21.1f %9.3f %9.3f"):format(ways, row.held / 1e9, bytes / 1e9, leaves / 1e9,
        seconds, copies / 1e9, late, row.step))
end

local near, wide = rows[1], rows[#rows]
local routed = plan(wide.ways, "deepseek-v3")
print(("Mistake: on %d H800, by prediction, with ep(%d) each rank sends %.1f of its %.1f GB of tokens to other machines and "
  .. "waits %.2f s for it in a step of %.2f s."):format(ranks, wide.ways, wide.leaves / 1e9, wide.exchanged / 1e9,
  wide.seconds, wide.step))
print(("Cure: with ep(%d), inside a machine, %.1f GB of them leave it, and a rank waits %.2f s in a step of %.2f s; it holds "
  .. "%.1f GB in place of %.1f, and copies of experts exchange gradients and updates of %.1f GB a step, %.2f s; or ep(%d) "
  .. "with exchanges that send a token once to each machine, as deepseek-v3's do, for which "
  .. "a rank waits %.2f s where nothing hides them."):format(
  near.ways, near.leaves / 1e9, near.seconds, near.step, near.held / 1e9, wide.held / 1e9, near.copies / 1e9, near.late,
  wide.ways, select(2, exchanges(routed))))
