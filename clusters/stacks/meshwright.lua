-- This project's own program: one kernel for each op as its footprint has it, launched from C++;
-- PyTorch's flash attention 2. What the program overlaps overlaps.
local include = ...
return {
  name = "meshwright",
  flash = 2, gradient_sum = 6, host = 0.25, whole_rows = true,
}
