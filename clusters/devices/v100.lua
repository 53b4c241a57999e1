-- What one NVIDIA V100 SXM2 can do, and how well it does it.
-- Rates and memory: data sheet "NVIDIA V100 Tensor Core GPU" (2020). No step was
-- published that this could be fitted on: shares are the A100's. Its tensor cores multiply fp16
-- alone ("NVIDIA Tesla V100 GPU Architecture", 2017, WP-08608).
local include = ...
return function(changes)
  local device = {
    name = "V100-32GB", peak16 = 125e12, peak32 = 15.7e12, peak64 = 7.8e12,
    lacks = { "bf16" },
    memory = "32GiB", workspace = "8MiB", context = "1343MB", communicator = "192MiB",
    bandwidth = 0.9e12, units = 80, tiles = include "devices/tiles",
    bandwidth_share = 0.779, gemm = 0.829, tile_k = 150, batched = 0.599,
    flash = { 0.35 },
    kernel = 3.5e-6, launch = 51.8e-6, backward_launch = 0.502,
    smooth = 4.5, slowed = 0.473, straggle = 0.004, optimizer = 1e-3,
  }
  for key, value in pairs(changes or {}) do device[key] = value end
  return device
end
