-- What streams through memory, by an op's kind: passes over its output's elements, kernels, ops of
-- the host. `dropout`: halves of a pass for masks. `fused`: bias, dropout and residual add are one
-- kernel, bias and activation another (Korthikanti et al. 2022, section 4, counts the tensors;
-- Megatron-LM's fused kernels). What a residual add's backward costs (the bias' gradient, and
-- dropout's) stands with the norm's, as a program has no instruction for it.
return function(dropout, fused)
  local mask = dropout and 0.5 or 0
  local add = 3 + mask + (fused and 0 or 1)
  local norm = {
    forward = { 2, 1, 1 },
    backward = { 4 + 3 + mask, 3, fused and 3 or 4 },
  }
  return {
    layer_norm = norm, rms_norm = norm,
    add = { forward = { add, 1, fused and 1 or 2 } },
    gelu = { forward = { fused and 2 or 4, 1, fused and 1 or 3 }, backward = { fused and 3 or 5, 3, fused and 1 or 3 } },
    swiglu = { forward = { 3, 1, 1 }, backward = { 5, 3, 1 } },
    attention = { forward = { 2, 1 }, backward = { 3, 2 } },  -- heads are turned to the front, and back
    embedding = { forward = { dropout and 2 or 1.5, 2, 5 }, backward = { 3, 4, 6 } },
    add_positions = { forward = { dropout and 2.5 or 1.5, 1, 3 }, backward = { 0, 0, 0 } },
    ce_max = { forward = { 0, 0, 4 } },
    ce_stats = { forward = { 0, 9, 10 }, backward = { 0, 5, 10 } },
    ce_loss = { forward = { 0, 0, 4 }, backward = { 0, 0, 4 } },
  }
end
