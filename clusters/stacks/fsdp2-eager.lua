-- PyTorch's fully_shard without torch.compile: each op of torchtitan's Llama is kernels of ATen, as
-- they stand in PyTorch 2.6. Passes over an op's output, of 2 bytes an element, by the tensors that
-- each kernel reads and writes, those in fp32 twice. Not fitted.
local include = ...
local ops = include "software/ops" (false, false)
-- aten::rms_norm is a composite: to fp32 (3), square (4), mean (2), times its root (4), to bf16
-- (3), times the weight (2). Backward: the weight (5), casts (6), both factors (10), the square
-- (12), their sum (6), in fp32 but for the ends; and the stream's two gradients are added (3).
ops.rms_norm = { forward = { 18, 8, 8 }, backward = { 42, 14, 14 } }
ops.add = { forward = { 3, 1, 1 } }
ops.swiglu = { forward = { 2 + 3, 2, 2 }, backward = { 6 + 3, 3, 3 } }
-- To fp32 (3), a complex product (4), to bf16 (3); the same backward.
ops.rope = { forward = { 10, 3, 6 }, backward = { 10, 3, 6 } }
-- The loss as fsdp2's.
return {
  name = "fsdp2-eager",
  runs = (include "software/runs")["fsdp2-eager"], measured = (include "software/measured")["fsdp2-eager"],
  flash = 2, ops = ops,
  loss_forward = 14, loss_backward = 22, optimizer_bytes = 44,
  gradient_sum = 6, host = 1,
  logit_memory = 8, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
