// Matrix decompositions that ranks in threads of one process may call at the same time.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace mw {

// At a process' first decomposition on a GPU, libtorch loads a library, and a second thread that
// calls a decomposition meanwhile fails ("lazy wrapper should be called at most once"). The
// functions below let one thread make the first call while other threads wait.

// The reduced QR decomposition (Q, R) of matrices [..., m, n]: Q is [..., m, min(m, n)], R is
// [..., min(m, n), n].
std::tuple<at::Tensor, at::Tensor> qr(const at::Tensor& matrices);

// Eigenvalues [..., n], ascending, and eigenvectors [..., n, n], in columns, of symmetric matrices
// [..., n, n]. The host waits for the device, because the library checks on the host whether all
// eigenvalues were found.
std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices);

}  // namespace mw
