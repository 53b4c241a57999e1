// Collectives of thread ranks whose tensors lie on one accelerator: ATen ops on views of the
// ranks' buffers, ordered by events.
#include "comm/local_device.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace mw::comm {
namespace {

at::Tensor view(const void* data, std::int64_t elements, at::ScalarType dtype, at::Device device) {
  return at::from_blob(const_cast<void*>(data), {elements},  // NOLINT: inputs are only read
                       at::TensorOptions().dtype(dtype).device(device));
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

}  // namespace

c10::Event record_event(at::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event event(device.type());
  event.record(guard.getStream(device));
  return event;
}

void block_current_stream(const c10::Event& event, at::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  event.block(guard.getStream(device));
}

void run_task_on_device(at::ScalarType dtype, Combine combine, at::Device device,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements) {
  const c10::NoGradGuard no_grad;
  const auto item = static_cast<std::int64_t>(c10::elementSize(dtype));
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  for (std::int64_t first = 0; first < elements; first += slice_elements) {
    const auto count = std::min(slice_elements, elements - first);
    const auto slice = [&](const std::byte* base) {
      return view(base + first * item, count, dtype, device);
    };
    at::Tensor total = slice(in[0]);
    if (in.size() > 1) {
      total = narrow ? total.to(at::kFloat) : total.clone();
      for (std::size_t k = 1; k < in.size(); ++k) combine_into(total, slice(in[k]), combine);
      if (combine == Combine::average) total.div_(static_cast<double>(in.size()));
    }
    for (const std::byte* to : out) slice(to).copy_(total, /*non_blocking=*/true);
  }
}

}  // namespace mw::comm
