-- Pitfall: experts spread so wide that their exchanges leave the machine. How many bytes go over
-- the slow links, and how long do they take there?
--
-- A token's hidden state goes to its top_k experts and comes back, in each layer, forward and
-- backward (and once more where forward is made again): T top_k h (n - 1)/n elements each way
-- for T tokens of a rank and ep(n) (Lepikhin et al. 2020, arXiv:2006.16668). That hardly depends
-- on n. What does is where it goes: with 8 devices in a machine and n > 8, n - 8 of a rank's n -
-- 1 partners are elsewhere, and all its layers wait for them. Within a machine nothing leaves it
-- but the gradients and updates of experts that several machines have a copy of, once a step,
-- whatever the microbatches. What it costs is memory: more experts on each rank.
--
-- Bytes are those of the plan and hold for any cluster, if tokens choose evenly. A script cannot
-- describe a cluster yet: the seconds are bytes over the bandwidths below, no more. Latency,
-- what overlaps and what other traffic there is (the all-reduce of what is no expert, the same
-- for every width) are left out.
local mw       = require "meshwright"
local zero, ep = mw.plugins("zero", "ep")

-- Bytes/s of a device: NVLink and InfiniBand of an H800, as DeepSeek-AI 2024, arXiv:2412.19437,
-- section 3.2.2, have them. Flop/s in bf16 by NVIDIA's data sheet of the H100; of it reached.
local inside, outside = 160e9, 50e9
local peak, share     = 989e12, 0.4
local ranks, machine  = 64, 8

local function plan(ways)
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
  }
  return tostring(result) and result             -- shown: not printed again at the end
end

print(("%d ranks, %d in a machine; GB a rank and step, seconds at %.0f GB/s inside and %.0f outside"):format(ranks,
      machine, inside / 1e9, outside / 1e9))
print("     GB held   exchanged   of it outside   seconds   between copies of experts   seconds")
local rows = {}
for _, ways in ipairs { 8, 16, 32, 64 } do
  local result, exchanged, copies = plan(ways), 0, 0
  for _, use in ipairs(result.communication) do
    if use.axis == "ep" then exchanged = exchanged + use.bytes end
    if use.axis == "zero.0" then copies = copies + use.bytes end   -- ranks that hold the same experts
  end
  local leaves = exchanged * math.max(0, ways - machine) / (ways - 1)
  local row = { ways = ways, held = result.memory[1].peak, exchanged = exchanged, leaves = leaves,
                seconds = (exchanged - leaves) / inside + leaves / outside, copies = copies, late = copies / outside,
                compute = result.hardware_flops_per_step / ranks / (share * peak) }
  rows[#rows + 1] = row
  print(("ep %-2d %7.1f %11.1f %15.1f %9.3f %27.1f %9.3f"):format(ways, row.held / 1e9, exchanged / 1e9, leaves / 1e9,
        row.seconds, copies / 1e9, row.late))
end

local near, wide = rows[1], rows[#rows]
print(("Mistake: with ep(%d) each rank sends %.1f of its %.1f GB of tokens to other machines, which takes %.2f s a "
  .. "step beside %.2f s of compute (at %.0f %% of the peak)."):format(wide.ways, wide.leaves / 1e9, wide.exchanged / 1e9,
  wide.seconds, wide.compute, 100 * share))
print(("Cure: with ep(%d), inside a machine, %.1f GB of them leave it and exchanges take %.2f s; a rank holds %.1f "
  .. "GB in place of %.1f, and copies of experts exchange gradients and updates of %.1f GB a step, %.2f s outside."):format(
  near.ways, near.leaves / 1e9, near.seconds, near.held / 1e9, wide.held / 1e9, near.copies / 1e9, near.late))
