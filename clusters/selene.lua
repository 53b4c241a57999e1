-- Selene, NVIDIA's cluster of DGX A100: nodes of 8 A100-80GB joined by NVLink 3 and NVSwitch (600
-- GB/s both ways), 8 HDR InfiniBand NICs of 200 Gb/s for training, a fat tree at full rate
-- (Narayanan et al. 2021, section 5).
local include = ...
return {
  name = "selene",
  device = include "devices/a100" (),
  node = {
    devices = 8, bandwidth = 300e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  network = { nic = 25e9, share = 0.88, latency = 15e-6, hop = 6e-6 },
  -- PCIe 4 x16 as copies reach it; a share of the DRAM's bandwidth; 2 TB of DRAM, as in
  -- "NVIDIA DGX A100 System Architecture", 2021.
  host = { link = 25e9, bandwidth = 20e9, capacity = "2TiB" },
}
