// Copies a tensor to host memory and back.
#include "run/host_copy.h"

namespace mw {

at::Tensor to_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.clone();
  at::Tensor host = at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
  return host.copy_(tensor, /*non_blocking=*/true);
}

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device, /*non_blocking=*/true, /*copy=*/true);
}

}  // namespace mw
