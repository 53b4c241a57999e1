-- DGX A100 with 40 GB a GPU, whose memory is slower, and 8 InfiniBand NICs of 200 Gb/s ("NVIDIA DGX
-- A100 System Architecture", 2020).
local include = ...
return {
  name = "dgx-a100-40",
  device = include "devices/a100" { name = "A100-40GB", memory = "40GiB", bandwidth = 1.555e12 },
  node = {
    devices = 8, bandwidth = 300e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 25e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 4 x16 as copies reach it; a share of the DRAM's bandwidth; 1 TB of DRAM.
  host = { link = 25e9, bandwidth = 20e9, capacity = "1TiB" },
}
