-- PyTorch's fully_shard with torch.compile: flash attention 2, elementwise ops fused by Inductor, a
-- fused optimizer, the loss not compiled (torchtitan: Liang et al. 2024; train.py of December
-- 2024): to fp32 (6 bytes a logit) and log-softmax (8); backward the zeroed gradient (4), that of
-- log-softmax (12) and back to 2 bytes (6). Not fitted.
local include = ...
return {
  name = "fsdp2",
  runs = (include "software/runs")["fsdp2"], measured = (include "software/measured")["fsdp2"],
  flash = 2, ops = include "software/ops" (false, true),
  loss_forward = 14, loss_backward = 22, optimizer_bytes = 44,
  gradient_sum = 6, host = 0.6,
  logit_memory = 8, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
