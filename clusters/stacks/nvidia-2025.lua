-- NVIDIA's software of 2025 (NeMo 24.12 to 25.11: Megatron-Core on Transformer Engine) as its recipes
-- for H100 run it in bf16: github.com/NVIDIA/dgxc-benchmarking v25.02.02 and v25.04.02, and the recipes
-- of NeMo that those name. What plans can say stands in plans: tp { overlap = true } for reductions
-- beside weight gradients ("bulk" in NeMo's tp_overlap_configs/userbuffers.py), zero { sequence = true },
-- overlap_gather left as it is, and gradients in bf16 (grad_reduce_in_fp32 = False), which are no option
-- as main_gradients is "compute". nvidia-2025-fp8 is the same in fp8.
local include = ...
return {
  name = "nvidia-2025",
  -- cuDNN's attention (NVTE_FUSED_ATTN=1), as fast on H100 as flash attention 3 within a tenth (Shah et
  -- al. 2024, "FlashAttention-3", figure 5).
  flash = 3,
  ops = include "stacks/ops" (false, true), joined_projections = true, whole_recompute = true,
  -- Megatron-Core's fused_cross_entropy.py (cross_entropy_loss_fusion): to fp32 (6 bytes a logit), the
  -- exponential in place, which Inductor writes anew and copies back (16), over its sum (8); backward the
  -- gradient in place likewise (16), to bf16 (6).
  loss_forward = 30, loss_backward = 22, embedding_backward = 2,
  -- Gradients to fp32 (2 + 4), their norm (4), Adam (28), parameters to bf16 (4 + 2).
  optimizer_bytes = 44,
  microbatch_host = 37,  -- get_batch, get_ltor_masks_and_position_ids, loss_func: docs/prediction.md
  gradient_sum = 2,      -- the product adds to bf16: read and written, of which one is the product's own
  host = 0.6,            -- as megatron-core
  -- Of 132 units those that the library's collectives are left (NeMo's PerfEnvPlugin,
  -- layernorm_sm_margin = 16).
  data_slowed = 16 / 132,
  sequence_beside = true,  -- communicators of their own: keys go round beside gradients
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
  -- Fitted (bench/fit_prediction.py nvidia-2025): libraries of 2025 and clocks that favour the units
  -- (PerfEnvPlugin, enable_vboost), and what userbuffers hide of TP's collectives without loss.
  products = 1.14, hidden_model = 0.3,
}
