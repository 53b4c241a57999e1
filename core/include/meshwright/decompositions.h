// Decompositions of matrices, as ranks in threads of one process may call them.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace mw {

// libtorch loads what decomposes matrices on GPUs at the first such call of a process, and fails in
// a second thread that comes while it does ("lazy wrapper should be called at most once"): here the
// first call goes alone.

// (Q, R) of matrices [..., m, n] in reduced form: Q is [..., m, min(m, n)], R [..., min(m, n), n].
std::tuple<at::Tensor, at::Tensor> qr(const at::Tensor& matrices);

// (values, vectors) of symmetric matrices [..., n, n]: values [..., n] ascending, vectors
// [..., n, n] in columns. The host waits for the device, as it reads whether all were found.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices);

}  // namespace mw
