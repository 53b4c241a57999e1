-- What one NVIDIA A100 SXM can do, and how well it does it.
-- Rates and memory: data sheet "NVIDIA A100 Tensor Core GPU" (2021), dense. The
-- rest, from bandwidth_share on, is one set for all A100, fitted on the tables of tests/reference
-- (kernel, launch, smooth and optimizer were set by hand). The context is what Hugging Face's
-- "Model training anatomy" measures of kernels alone; a communicator has 24 channels, each with a
-- buffer of 4 MiB (NCCL_BUFFSIZE) towards a peer and from one.
local include = ...
return function(changes)
  local device = {
    name = "A100-80GB", fitted = true, peak16 = 312e12, peak32 = 19.5e12, peak64 = 9.7e12,
    memory = "80GiB", workspace = "8MiB", context = "1343MB", communicator = "192MiB",
    bandwidth = 2.04e12, power = 400, units = 108, tiles = include "devices/tiles",
    bandwidth_share = 0.779, gemm = 0.829, tile_k = 150, batched = 0.599,
    flash = { 0.35, 0.45, 0.6 },
    kernel = 3.5e-6, launch = 53.5e-6, backward_launch = 0.502,
    smooth = 3, slowed = 0.473, straggle = 0.004, optimizer = 1e-3,
  }
  for key, value in pairs(changes or {}) do device[key] = value end
  return device
end
