local include = ...
return {
  name = "nvidia-2025",
  flash = 3, ops = include "stacks/ops" (false, true), joined_projections = true, whole_recompute = true,
  loss_forward = 34.2, loss_backward = 22.8, embedding_backward = 2, optimizer_bytes = 44,
  microbatch_host = 37,
  gradient_sum = 2, hidden_model = 0.7, host = 0.6,
  logit_memory = 6, reserve = 0.15,
}
