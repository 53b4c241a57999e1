-- TPU v4: 275 TFLOP/s bf16, 32 GiB at 1.2 TB/s, hosts of 4 chips, a 3-D torus of 6 links of 50 GB/s
-- each way (Jouppi et al. 2023, "TPU v4", table 4). Of another size than this cube of 64 chips:
-- nodes and torus.shape.
local include = ...
return {
  name = "tpu-v4", nodes = 16,
  device = include "devices/tpu" { name = "TPU v4", peak16 = 275e12, memory = "32GiB", bandwidth = 1.2e12 },
  node = { devices = 4 },
  torus = { shape = { 4, 4, 4 }, bandwidth = 50e9, latency = 1e-6 },
}
