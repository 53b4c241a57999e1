// Collectives of thread ranks whose tensors lie on accelerators: ATen ops on views of the ranks'
// buffers, which are copied where they lie on another device.
#include "comm/local_device.h"

#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace mw::comm {
namespace {

// The device is the one on which the address lies.
at::Tensor view(const void* data, std::int64_t elements, at::ScalarType dtype,
                at::DeviceType type) {
  return at::from_blob(const_cast<void*>(data), {elements},  // NOLINT: inputs are only read
                       at::TensorOptions().dtype(dtype).device(type));
}

void combine_into(at::Tensor& total, const at::Tensor& next, Combine combine) {
  switch (combine) {
    case Combine::sum:
    case Combine::average:
      total.add_(next);
      break;
    case Combine::product:
      total.mul_(next);
      break;
    case Combine::min:
      at::minimum_out(total, total, next);
      break;
    case Combine::max:
      at::maximum_out(total, total, next);
      break;
  }
}

// Bounds the accumulator that a reduction needs beside the ranks' buffers.
constexpr std::int64_t slice_elements = 8 * 1024 * 1024;

class Unbooked final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements) {
  const c10::NoGradGuard no_grad;
  static const auto unbooked = std::make_shared<Unbooked>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, unbooked);
  const auto item = static_cast<std::int64_t>(c10::elementSize(dtype));
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  for (std::int64_t first = 0; first < elements; first += slice_elements) {
    const auto count = std::min(slice_elements, elements - first);
    const auto slice = [&](const std::byte* base) {
      return view(base + first * item, count, dtype, type);
    };
    at::Tensor total = slice(in[0]);
    if (in.size() > 1) {
      const at::Device home = slice(out[0]).device();
      const auto there = [&](const at::Tensor& tensor) {
        return tensor.device() == home ? tensor : tensor.to(home, /*non_blocking=*/true);
      };
      total = there(total).to(narrow ? at::kFloat : dtype, /*non_blocking=*/true, /*copy=*/true);
      for (std::size_t k = 1; k < in.size(); ++k) combine_into(total, there(slice(in[k])), combine);
      if (combine == Combine::average) total.div_(static_cast<double>(in.size()));
    }
    for (std::byte* to : out) slice(to).copy_(total, /*non_blocking=*/true);
  }
}

}  // namespace mw::comm
