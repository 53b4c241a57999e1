-- Megatron-LM as vTrain's authors measured it (Bang et al. 2024): gradients are summed and reduced
-- in fp16, nothing overlaps.
local include = ...
return {
  name = "vtrain", fitted = true,
  runs = (include "software/runs")["vtrain"], measured = (include "software/measured")["vtrain"],
  flash = 0, scores_forward = 4 + 5, scores_backward = 6 + 5,  -- scale, mask and softmax are one kernel; dropout
  fused_heads = 4,  -- ... where heads times sequences divide by 4
  ops = include "software/ops" (true, true), joined_projections = true, whole_recompute = true,
  loss_forward = 34.2, loss_backward = 22.8,                    -- of logits in fp32, op by op
  -- FusedAdam alone: the gradient read, parameter and both moments read and written in fp32, the
  -- parameter written in fp16. Steps that differ in their number of microbatches alone tell that:
  -- what is left of them without any takes about as long.
  optimizer_bytes = 4 + 3 * 8 + 2,
  scattered_sends = true, stages_wait = true,                   -- Narayanan et al. 2021, section 4.1
  microbatch_host = 37,  -- get_batch, get_ltor_masks_and_position_ids, loss_func: docs/prediction.md
  gradient_sum = 6,
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
