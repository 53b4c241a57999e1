// Decompositions of matrices, as ranks in threads of one process may call them.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace mw {

// At the first decomposition of a process on GPUs libtorch loads a library, and a second thread
// that calls one meanwhile fails ("lazy wrapper should be called at most once"). The functions of
// this file let one thread make the first call while the others wait.

// (Q, R) of matrices [..., m, n] in reduced form: Q is [..., m, min(m, n)], R [..., min(m, n), n].
std::tuple<at::Tensor, at::Tensor> qr(const at::Tensor& matrices);

// (values, vectors) of symmetric matrices [..., n, n]: values [..., n] ascending, vectors
// [..., n, n] in columns. The host waits for the device, since the library reads there whether all
// eigenvalues were found.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices);

}  // namespace mw
