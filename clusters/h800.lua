-- Where DeepSeek-V3 was trained: nodes of 8 H800 with NVLink cut to 200 GB/s each way, 8 InfiniBand
-- NICs of 400 Gb/s (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.1).
local include = ...
return {
  name = "h800",
  device = include "devices/h100" { name = "H800-80GB", fitted = false },
  -- The curves are the A100's, whose link is 1.5 times faster.
  node = {
    devices = 8, bandwidth = 200e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 50e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 5 x16 as copies reach it; a share of the DRAM's bandwidth. How much DRAM a
  -- node has is not published.
  host = { link = 50e9, bandwidth = 30e9 },
}
