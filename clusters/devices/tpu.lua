-- Google TPU, compiled by XLA: a step is one program, so that the host launches nothing op by op.
-- Shares are guesses between published model FLOPs utilisations (Chowdhery et al. 2022, PaLM: 46 %
-- of v4) and 1; nothing is fitted. Products have no tiles here: 128 x 128 systolic arrays are small
-- against training's shapes; they multiply bf16 (Jouppi et al. 2020, "A domain-specific
-- supercomputer for training deep neural networks").
local include = ...
return function(changes)
  local device = {
    name = "TPU", lacks = { "fp16" }, gemm = 0.75, bandwidth_share = 0.8, flash = { 0.5, 0.5, 0.5 },
    kernel = 1e-6, launch = 0, slowed = 0.1, straggle = 0.002, optimizer = 1e-3,
  }
  for key, value in pairs(changes or {}) do device[key] = value end
  return device
end
