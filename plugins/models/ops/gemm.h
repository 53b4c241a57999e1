// Matrix products by the library that is fastest on this CPU.
#pragma once

#include <ATen/ATen.h>

namespace mw {

// x (m, k) times weight (n, k) transposed: (m, n). `weight` may be a transposed view. A bias, where
// there is one, is added to each row.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias = {});

// out = a b, or out += a b.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add);

// Like product_into(), for a size that hardly comes again, such as the number of an expert's rows:
// the rows of a, or the contracted dim where a is a transposed view. No kernel is compiled for it.
void passing_product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace mw
