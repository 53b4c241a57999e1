-- DeepSeek's trainer of V3 (DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3): products
-- in fp8 with operands scaled in tiles, tokens dispatched in fp8 and combined in bf16, to 4 nodes
-- at most and once to each, exchanges carried by 20 of a device's 132 SMs. What hides them is the
-- plan's: pairs of works (DualPipe). How well its attention does is not published: as flash
-- attention 2.
local include = ...
return {
  name = "deepseek-v3",
  flash = 2, ops = include "software/ops" (false, true), joined_projections = true, whole_recompute = false,
  loss_forward = 34.2, loss_backward = 22.8, optimizer_bytes = 36,  -- moments in bf16
  gradient_sum = 6, host = 0.6,
  product_bits = 8, product_casts = 3,  -- read in bf16, written in fp8
  grouped = 0.9,                        -- rows of experts come in no whole tiles
  exchanged = 0.76,                     -- two of four in fp8, with their scales
  by_node = true, exchange_nodes = 4, exchange_slowed = 20 / 132,
  logit_memory = 6, reserve = 0.15,  -- logits in fp32; Guo et al. 2024, "GMLake", abstract
}
