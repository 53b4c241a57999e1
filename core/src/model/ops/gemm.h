// Matrix products into a tensor of their own, by the library that is fastest on this CPU.
#pragma once

#include <ATen/ATen.h>

namespace mw {

// x (m, k) times weight (n, k) transposed: (m, n). `weight` may be a transposed view.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight);

}  // namespace mw
