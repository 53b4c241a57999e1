// Calls ATen's decompositions, after one thread has made a process's first call on a GPU.
#include "meshwright/decompositions.h"

#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>

#include <mutex>

#include "meshwright/engine/host.h"

namespace mw {
namespace {

void load_library(const at::Tensor& like) {
  if (like.is_cpu()) return;
  static std::once_flag loaded;
  std::call_once(loaded, [&] { at::linalg_qr(at::eye(1, like.options())); });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> qr(const at::Tensor& matrices) {
  load_library(matrices);
  return at::linalg_qr(matrices);
}

std::tuple<at::Tensor, at::Tensor> eigh(const at::Tensor& matrices) {
  load_library(matrices);
  const HostWait waits("eigenvectors");
  return at::linalg_eigh(matrices);
}

}  // namespace mw
