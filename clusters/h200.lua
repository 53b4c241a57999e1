-- Nodes of 8 H200: the H100 with 141 GB of faster memory ("NVIDIA H200 Tensor Core GPU Datasheet",
-- 2024).
local include = ...
return {
  name = "h200",
  device = include "devices/h100" { name = "H200-141GB", memory = "141GB", bandwidth = 4.8e12, fitted = false },
  -- The curves are the A100's, whose link is 1.5 times slower.
  node = {
    devices = 8, bandwidth = 450e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 50e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 5 x16 as copies reach it; a share of the DRAM's bandwidth; 2 TB of DRAM ("NVIDIA DGX H200
  -- Datasheet", 2024).
  host = { link = 50e9, bandwidth = 30e9, capacity = "2TiB" },
}
