-- Meta's trainer of Llama 3 405B (Grattafiori et al. 2024, section 3.3.2): flash attention 3,
-- asynchronous sends, sharded states with overlapped collectives; TP's are not hidden; nothing is
-- checkpointed, so that no layer is computed again to its end.
local include = ...
return {
  name = "llama3", fitted = true,
  runs = (include "software/runs")["llama3"], measured = (include "software/measured")["llama3"],
  flash = 3, ops = include "software/ops" (false, true), joined_projections = true,
  loss_forward = 34.2, loss_backward = 22.8, optimizer_bytes = 44,
  gradient_sum = 6, hidden_model = 0, host = 0.6,
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
