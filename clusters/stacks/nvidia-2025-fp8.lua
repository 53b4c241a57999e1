-- NVIDIA's Megatron-Core and Transformer Engine of 2025 with linears of layers in fp8 and delayed
-- scaling (NeMo's bf16_with_fp8_mixed). All else is in bf16, as nvidia-2025 has it.
local include = ...
local stack = {}
for key, value in pairs(include "stacks/nvidia-2025") do stack[key] = value end
stack.name = "nvidia-2025-fp8"
stack.measured = (include "software/measured")["nvidia-2025-fp8"]
stack.product_bits = 8
-- Transformer Engine's cast_transpose reads an operand in bf16 and writes it in fp8 twice, once
-- transposed, as H100's products in fp8 take one layout alone. Current scaling reads it once more,
-- for its largest number: 6.
stack.product_casts = 4
stack.narrow_gathers = true  -- userbuffers gather in fp8
stack.products = 1.08        -- fitted beside nvidia-2025's
return stack
