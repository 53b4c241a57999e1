-- MaxText on TPU, compiled by XLA: elementwise work is fused into products, collectives of sharded
-- parameters run beside compute, those of the model's axes in pieces beside their products (its
-- flags of xla_tpu_enable_async_collective_fusion; github.com/AI-Hypercomputer/maxtext,
-- configs/v5p).
local include = ...
return {
  name = "maxtext",
  runs = (include "software/runs")["maxtext"],
  flash = 2, ops = include "software/ops" (false, true), joined_projections = true,
  loss_forward = 12, loss_backward = 8, optimizer_bytes = 44,
  gradient_sum = 6, hidden_model = 0.7, host = 0,
}
