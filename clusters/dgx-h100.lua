-- DGX H100: 8 H100 joined by NVLink 4 (450 GB/s each way) and 8 NDR InfiniBand NICs of 400 Gb/s
-- ("NVIDIA DGX H100 Datasheet", 2023).
local include = ...
return {
  name = "dgx-h100",
  device = include "devices/h100" (),
  -- The curves are the A100's, whose link is 1.5 times slower.
  node = {
    devices = 8, bandwidth = 450e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 50e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 5 x16 as copies reach it; a share of the DRAM's bandwidth; 2 TB of DRAM.
  host = { link = 50e9, bandwidth = 30e9, capacity = "2TiB" },
}
