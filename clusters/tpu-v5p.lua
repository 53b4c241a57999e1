-- TPU v5p: 459 TFLOP/s bf16, 95 GB at 2.765 TB/s, hosts of 4 chips, a 3-D torus with 4,800 Gb/s a
-- chip (Google Cloud, "TPU v5p" documentation, 2024). Of another size than this cube of 64 chips:
-- nodes and torus.shape.
local include = ...
return {
  name = "tpu-v5p", nodes = 16,
  device = include "devices/tpu" { name = "TPU v5p", peak16 = 459e12, memory = "95GB", bandwidth = 2.765e12 },
  node = { devices = 4 },
  torus = { shape = { 4, 4, 4 }, bandwidth = 100e9, latency = 1e-6 },
}
