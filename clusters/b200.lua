-- DGX B200: 8 B200 joined by NVLink 5 (900 GB/s each way) and 8 InfiniBand NICs of 400 Gb/s
-- ("NVIDIA DGX B200 Datasheet", 2024).
local include = ...
return {
  name = "b200",
  device = include "devices/b200" (),
  -- The curves are the A100's, whose link is three times slower.
  node = {
    devices = 8, bandwidth = 900e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 50e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 5 x16 as copies reach it; a share of the DRAM's bandwidth; 2 TB of DRAM (up to 4 can be
  -- had).
  host = { link = 50e9, bandwidth = 30e9, capacity = "2TiB" },
}
