-- What one NVIDIA H100 SXM can do, and how well it does it.
-- Rates and memory: data sheet "NVIDIA H100 Tensor Core GPU" (2023), dense. The
-- rest, from bandwidth_share on, is fitted on the tables of tests/reference; what was not is the
-- A100's. Flash attention 3: Shah et al. 2024, about 600 TFLOP/s forward.
local include = ...
return function(changes)
  local device = {
    name = "H100-80GB", fitted = true, peak8 = 1979e12, peak16 = 989e12, peak32 = 67e12, peak64 = 34e12,
    memory = "80GiB", workspace = "32MiB", context = "1343MB", communicator = "192MiB",
    bandwidth = 3.35e12, power = 700, units = 132, tiles = include "devices/tiles",
    bandwidth_share = 0.766, gemm = 0.616, tile_k = 153, batched = 0.599,
    flash = { 0.206, 0.371, 0.6 },
    kernel = 3.5e-6, launch = 41.5e-6, backward_launch = 0.502,
    smooth = 4.5, slowed = 0.503, straggle = 0.004, optimizer = 1e-3,
  }
  for key, value in pairs(changes or {}) do device[key] = value end
  return device
end
