-- Experts on a torus, beside a network in which any device reaches any other at the same rate: what
-- does the all-to-all of tokens cost on each?
--
-- In a torus each device has links to its neighbours alone, and rows for a far expert go through
-- all devices between, so that the links through its middle bound an all-to-all (Jouppi et al.
-- 2023, "TPU v4", arXiv:2304.01433, section 2). Both clusters have the same chips, and as many
-- bytes a second of each. What is compared is the predicted time of the exchanges in the layers of
-- experts, on plans that fit. To expect: ep(4) fills a ring of four. Half of what each of its chips
-- has leaves by each of two links, as rows for the far chip take two hops; a switched chip sends
-- three quarters of it by the rate of six. That is four times as long, less by the shares of their
-- rates that the two reach (0.9 and 0.78). From ep(16) on the links in the middle of a line of four
-- or a ring of eight each carry as much as a chip has, where a switched chip sends nearly all of
-- that by the rate of six: six times. In ep(16) the switched network sends a fifth inside the node,
-- beside the rest, so that the factor is larger than of ep(256).
local mw       = require "meshwright"
local zero, ep = mw.plugins("zero", "ep")

local torus  = mw.cluster("tpu-v5p", { nodes = 64, torus = { shape = { 8, 8, 4 } } })
local switch = { name = "switched", nodes = 64, device = torus.device,
  node = { devices = 4, bandwidth = 600e9, latency = 1e-6 }, network = { nic = 600e9, latency = 1e-6, hop = 1e-6 } }

-- Seconds that a chip's exchanges of a step take.
local function exchanges(cluster, ways)
  local p = mw.plan {
    model = mw.moe { layers = 4, hidden = 4096, heads = 32, kv_heads = 8, ffn = 2048, vocab = 32000, experts = 256, top_k = 8 },
    data = mw.synthetic {}, sequence = 4096, batch = 512, microbatch = 2, precision = "bf16",
    plan = { zero { 256, stage = 1 }, ep(ways) }, optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
    cluster = cluster, stack = mw.stack "maxtext",
  }
  assert(p.fits, "ep(" .. ways .. ") needs more memory than a chip has")
  local seconds = 0
  for _, row in ipairs(p.communication) do
    if row.axis == "ep" then seconds = seconds + row.seconds end
  end
  return seconds
end
local rows = {}
for _, ways in ipairs { 4, 16, 64, 256 } do
  local on_torus, switched = exchanges(torus, ways), exchanges(switch, ways)
  rows[#rows + 1] = ("ep(%d) %.1f against %.1f ms, %.2f times"):format(ways, 1e3 * on_torus, 1e3 * switched,
    on_torus / switched)
end
print(("Answer: On 256 chips, the exchanges of four layers of experts in a step on the torus and on the switched " ..
  "network, by prediction: %s."):format(table.concat(rows, "; ")))
