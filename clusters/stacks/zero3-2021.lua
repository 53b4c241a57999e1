-- DeepSpeed's ZeRO-3 as Narayanan et al. 2021 measured it (section 5.2): Megatron-LM's kernels,
-- parameters gathered by rings that have one of a node's 8 NICs.
local include = ...
return {
  name = "zero3-2021", fitted = true,
  runs = (include "software/runs")["zero3-2021"], measured = (include "software/measured")["zero3-2021"],
  flash = 0, scores_forward = 4 + 5, scores_backward = 6 + 5,  -- scale, mask and softmax are one kernel; dropout
  fused_heads = 4,  -- ... where heads times sequences divide by 4
  ops = include "software/ops" (true, true), joined_projections = true, whole_recompute = true,
  loss_forward = 34.2, loss_backward = 22.8,                    -- of logits in fp32, op by op
  optimizer_bytes = 54,
  scattered_sends = true, stages_wait = true,                   -- Narayanan et al. 2021, section 4.1
  microbatch_host = 37,  -- get_batch, get_ltor_masks_and_position_ids, loss_func: docs/prediction.md
  gradient_sum = 6, data_share = 0.137,
  data_slowed = 0.35,    -- parameters are copied into and out of what is gathered, beside compute
  backward_gathers = 2,  -- for the layer that is computed again, and for its backward
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
