-- Experts on a torus, beside a network in which any device reaches any other at the same rate: what
-- does the all-to-all of tokens cost on each?
--
-- In a torus each device has links to its neighbours alone, and rows for a far expert go through
-- all devices between, so that the links through its middle bound an all-to-all (Jouppi et al.
-- 2023, "TPU v4", arXiv:2304.01433, section 2). Both clusters have the same chips, and as many
-- bytes a second of each. By prediction alone. The ratios are of whole steps: ZeRO's gathers and
-- scatters over ranks that lie apart take longer on the torus too, and are most of the difference
-- where ep is narrow; with ep(4) a rank would need more memory than a chip has.
local mw       = require "meshwright"
local zero, ep = mw.plugins("zero", "ep")

local torus  = mw.cluster("tpu-v5p", { nodes = 64, torus = { shape = { 8, 8, 4 } } })
local switch = { name = "switched", nodes = 64, device = torus.device,
  node = { devices = 4, bandwidth = 600e9, latency = 1e-6 }, network = { nic = 600e9, latency = 1e-6, hop = 1e-6 } }

local function step(cluster, ways)
  return mw.plan {
    model = mw.moe { layers = 16, hidden = 4096, heads = 32, kv_heads = 8, ffn = 2048, vocab = 32000, experts = 256, top_k = 8 },
    data = mw.synthetic {}, sequence = 4096, batch = 512, microbatch = 2, precision = "bf16",
    plan = { zero { 256, stage = 1 }, ways > 1 and ep(ways) or nil }, optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
    cluster = cluster, stack = mw.stack "maxtext",
  }
end
local rows = {}
for _, ways in ipairs { 4, 16, 64, 256 } do
  local on_torus, switched = step(torus, ways), step(switch, ways)
  rows[#rows + 1] = ("ep(%d) %.2f"):format(ways, on_torus.step_seconds / switched.step_seconds)
end
print(("Answer: On 256 chips, a step on the torus over one on the switched network, by prediction: %s."):format(
  table.concat(rows, ", ")))
