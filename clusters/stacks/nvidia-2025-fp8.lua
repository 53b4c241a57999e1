-- NVIDIA's software of 2025 in fp8 with delayed scaling (NeMo's bf16_with_fp8_mixed, "hybrid"): linears
-- of layers in fp8, attention, embedding and output in bf16; else as nvidia-2025.
local include = ...
local stack = {}
for key, value in pairs(include "stacks/nvidia-2025") do stack[key] = value end
stack.name = "nvidia-2025-fp8"
stack.product_bits = 8
-- An operand is read in bf16, and written in fp8 twice, as it lies and transposed: products in fp8 take
-- it in one layout alone on H100 (Transformer Engine's cast_transpose). With current scaling it is read
-- once more, for its largest number: 6.
stack.product_casts = 4
stack.narrow_gathers = true  -- userbuffers gather in fp8
stack.products = 1.09        -- fitted, as there
return stack
