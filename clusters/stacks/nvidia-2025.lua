-- NVIDIA's Megatron-Core and Transformer Engine of 2025 in bf16, as recipes of NeMo 24.12 to 25.11
-- run them on H100 (github.com/NVIDIA/dgxc-benchmarking v25.02.02 and v25.04.02, and the recipes
-- that those name). A plan says what a plan can say: tp { overlap = true } for reductions beside
-- weight gradients ("bulk" in NeMo's userbuffers.py), recompute = { gathers = true }, and zero {
-- sequence = true }. Gradients stay in bf16 there (grad_reduce_in_fp32 = False), as main_gradients
-- = "compute" has them.
local include = ...
return {
  name = "nvidia-2025", fitted = true,
  runs = (include "software/runs")["nvidia-2025"], measured = (include "software/measured")["nvidia-2025"],
  -- The recipes choose cuDNN's attention (NVTE_FUSED_ATTN=1). It is taken to be as fast as flash
  -- attention 3, beside which Shah et al. 2024 ("FlashAttention-3", figure 5) measured it.
  flash = 3,
  ops = include "software/ops" (false, true), joined_projections = true, whole_recompute = true,
  -- Megatron-Core's fused_cross_entropy.py, counted: logits go to fp32 (6 bytes each), Inductor
  -- writes exponentials anew and copies them back (16), they are divided by their sum (8);
  -- backward writes the gradient anew and copies it back (16), and narrows it (6).
  loss_forward = 30, loss_backward = 22,
  -- Gradients are widened (2 + 4), their norm reads them (4), Adam has 28, parameters are narrowed
  -- (6).
  optimizer_bytes = 44,
  microbatch_host = 37,  -- get_batch, get_ltor_masks_and_position_ids, loss_func: docs/prediction.md
  gradient_sum = 2,      -- the product adds to what it reads in bf16
  host = 0.6,            -- megatron-core has as much
  -- NeMo leaves collectives 16 of 132 units (PerfEnvPlugin, layernorm_sm_margin).
  data_slowed = 16 / 132,
  sequence_beside = true,  -- keys have a communicator and a stream of their own
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
  -- Both were fitted by bench/fit_prediction.py nvidia-2025. Products have libraries of 2025, and
  -- clocks that favour them (PerfEnvPlugin, enable_vboost); userbuffers hide TP's collectives.
  products = 1.14, hidden_model = 0.475,
}
