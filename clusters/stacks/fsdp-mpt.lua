-- MosaicML's LLM Foundry with PyTorch FSDP as its README's table of throughputs has it (2023):
-- flash attention 1, elementwise ops in eager PyTorch, an optimizer that is not fused.
local include = ...
return {
  name = "fsdp-mpt", fitted = true,
  runs = (include "software/runs")["fsdp-mpt"], measured = (include "software/measured")["fsdp-mpt"],
  flash = 1, ops = include "software/ops" (false, false), joined_projections = true,
  loss_forward = 34.2, loss_backward = 22.8, optimizer_bytes = 80,
  gradient_sum = 6,
  logit_memory = 8, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
