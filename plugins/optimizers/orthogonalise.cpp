// Newton-Schulz iterations that move the singular values of a stack of matrices towards 1, for
// Muon.
#include <utility>

#include "optimizer.h"

namespace mw {

at::Tensor orthogonalised(const at::Tensor& stack, int steps) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315, least_norm = 1e-7;
  stack.div_(at::linalg_vector_norm(stack, 2, {{1, 2}}, /*keepdim=*/true).clamp_min_(least_norm));
  if (steps == 0 || stack.numel() == 0) return stack;
  // The smaller of the two products; (X X^T) X = X (X^T X).
  const bool tall = stack.size(1) > stack.size(2);
  const std::int64_t least = tall ? stack.size(2) : stack.size(1);
  at::Tensor x = stack, next = at::empty_like(stack);
  at::Tensor gram = at::empty({stack.size(0), least, least}, stack.options());
  at::Tensor sum = at::empty_like(gram);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor turned = x.transpose(1, 2);
    at::bmm_out(gram, tall ? turned : x, tall ? x : turned);
    at::baddbmm_out(sum, gram, gram, gram, b, c);
    at::baddbmm_out(next, x, tall ? x : sum, tall ? sum : x, a, 1);
    std::swap(x, next);
  }
  return x;
}

}  // namespace mw
