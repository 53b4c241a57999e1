// Copies tensors between a rank's device and host memory. A copy is always made, also where the
// device is the CPU.
#pragma once

#include <ATen/ATen.h>

namespace mw {

// In page-locked memory where the device is none of the host's own. Copies stand in the current
// stream, so what is queued there later may overwrite the source.
at::Tensor to_host(const at::Tensor& tensor);
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

}  // namespace mw
