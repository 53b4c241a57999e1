-- What one NVIDIA B200 can do, and how well it does it.
-- Rates and memory: NVIDIA "Blackwell Architecture Technical Brief" (2024), dense; of
-- large products 1,745 TFLOP/s were measured (Bekman, "Machine Learning Engineering", on matmul
-- FLOPS). No step was published that this could be fitted on: shares are the H100's, the product's
-- by that measurement.
local include = ...
return function(changes)
  local device = {
    name = "B200-180GB", peak8 = 4500e12, peak16 = 2250e12, peak32 = 80e12, peak64 = 40e12,
    memory = "180GiB", workspace = "32MiB", context = "1343MB", communicator = "192MiB",
    bandwidth = 8e12, units = 148, tiles = include "devices/tiles",
    bandwidth_share = 0.766, gemm = 0.6, tile_k = 153, batched = 0.599,
    flash = { 0.15, 0.3, 0.5 },
    kernel = 3.5e-6, launch = 41.5e-6, backward_launch = 0.502,
    smooth = 4.5, slowed = 0.503, straggle = 0.004, optimizer = 1e-3,
  }
  for key, value in pairs(changes or {}) do device[key] = value end
  return device
end
