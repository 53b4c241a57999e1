-- Megatron-Core as its table of H100 throughputs has it (2024): flash attention 2 (Transformer
-- Engine), collectives of TP in pieces beside their products, the distributed optimizer with both
-- of its collectives overlapped, sends overlapped. Each rank of TP exchanges the tokens of its part
-- of the sequence, and TP's ranks gather what came for an expert, and scatter its sums, inside the
-- node (megatron/core/transformer/moe/token_dispatcher.py, MoEAlltoAllTokenDispatcher).
local include = ...
return {
  name = "megatron-core", fitted = true,
  runs = (include "software/runs")["megatron-core"], measured = (include "software/measured")["megatron-core"],
  flash = 2, ops = include "software/ops" (false, true), joined_projections = true, whole_recompute = true,
  loss_forward = 34.2, loss_backward = 22.8, optimizer_bytes = 44,
  microbatch_host = 37,  -- get_batch, get_ltor_masks_and_position_ids, loss_func: docs/prediction.md
  gradient_sum = 6, hidden_model = 0.7, host = 0.6,
  scattered_exchanges = true,
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
