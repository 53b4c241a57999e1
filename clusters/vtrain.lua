-- The cluster that vTrain's authors measured on: nodes of 8 A100-80GB, 4 HDR InfiniBand NICs of 200
-- Gb/s, 100 Gb/s a GPU (Bang et al. 2024, MICRO, section IV).
local include = ...
return {
  name = "vtrain",
  device = include "devices/a100" (),
  node = {
    devices = 8, bandwidth = 300e9, latency = 5e-6, curves = include "devices/nvlink_a100", curve_bandwidth = 300e9,
    curve_share = 0.992,
  },
  -- Two devices share a NIC: a group that has some of a node's devices gets no NIC to itself.
  network = { nic = 12.5e9, share = 0.88, latency = 15e-6, hop = 6e-6, partial = 0.5 },
  -- PCIe 4 x16 as copies reach it; a share of the DRAM's bandwidth. How much DRAM a
  -- node has is not published.
  host = { link = 25e9, bandwidth = 20e9 },
}
