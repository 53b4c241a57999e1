-- DGX-2H-like nodes of 8 V100 joined by NVLink 2 (150 GB/s each way), 4 EDR InfiniBand NICs of 100
-- Gb/s ("NVIDIA DGX-1 with Tesla V100 System Architecture", 2017, WP-08437).
local include = ...
return {
  name = "dgx-v100",
  device = include "devices/v100" (),
  node = {
    devices = 8, bandwidth = 150e9, latency = 5e-6, curves = include "devices/nvlink_v100", curve_bandwidth = 150e9,
  },
  network = { nic = 6.25e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 3 x16 as copies reach it; a share of the DRAM's bandwidth; 512 GB of DRAM.
  host = { link = 12e9, bandwidth = 15e9, capacity = "512GiB" },
}
