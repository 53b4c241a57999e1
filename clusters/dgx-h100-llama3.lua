-- Where Llama 3 405B was trained: nodes of 8 H100-80GB with HBM3 at 700 W, 8 RoCE NICs of 400 Gb/s,
-- a three-layer Clos network whose pods of 3,072 GPUs have full rate within and 1:7 above
-- (Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.1).
local include = ...
return {
  name = "dgx-h100-llama3",
  device = include "devices/h100" (),
  -- The curves are the A100's, whose link is 1.5 times slower.
  node = {
    devices = 8, bandwidth = 450e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 50e9, share = 0.88, latency = 15e-6, hop = 6e-6, pod = 384, oversubscription = 7 },
  -- PCIe 5 x16 as copies reach it; a share of the DRAM's bandwidth. How much DRAM a
  -- node has is not published.
  host = { link = 50e9, bandwidth = 30e9 },
}
