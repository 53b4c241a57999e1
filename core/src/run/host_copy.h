// Copies tensors between a rank's device and host memory: on a stream for each way, beside what the
// rank computes. Where the device is the CPU, a copy is made at once. Predictions play the same
// waits (libs/predict/host_lanes.h).
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "meshwright/ledger.h"

namespace mw {

// Tests that leave out a wait find its copy by the `name`. Names outlive the copies.
class HostCopies {
 public:
  HostCopies(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}

  // Copies a tensor to page-locked memory, booked as host memory. One tensor at a time is on its
  // way and is kept until it is there; a copy waits for the one before, so that the memory held is
  // the same in every run.
  at::Tensor to_host(const at::Tensor& tensor, std::string_view name);
  // Copies a tensor as to_host() does, into memory that is there already. A copy of `host` to the
  // device that begins later waits for this one.
  void back(const at::Tensor& host, const at::Tensor& tensor, std::string_view name);
  // Copies between two tensors, one on the device and one in host memory. A copy to the device
  // waits for one that is still leaving for that memory. Several copies may be under way. `lasts`:
  // the tensor in host memory lasts, and the host calls there() before it reads or writes it.
  void copy(const at::Tensor& to, const at::Tensor& from, std::string_view name, bool lasts = true);
  // Waits, on the host, for the last copy to or from this tensor in host memory that `lasts`.
  void there(const at::Tensor& host);
  // copy() into a new tensor on the device.
  at::Tensor to_device(const at::Tensor& host, std::string_view name, bool lasts = false);
  // A tensor of the CPU, on the device: itself where the device is the CPU. Whoever made it may
  // release it but not write to it.
  at::Tensor brought(const at::Tensor& host, std::string_view name);

  // Whether any copy is under way. touch() has the rank's own stream wait for copies of the tensor:
  // to be called before that stream reads, writes or frees it.
  bool any() const { return !underway_.empty(); }
  void touch(const at::Tensor& tensor);
  void finish();  // touch() for all copies
  void land();    // the host waits until all are there

  // Whether it is a tensor of to_device() that is on its way.
  bool brings(const at::Tensor& tensor) const;
  // The stream on which a tensor of to_device() arrives. The caller queues there what reads it, and
  // keeps it until the rank's own stream has waited for that; touch() will not wait for it.
  c10::Stream stream_of(const at::Tensor& tensor);

 private:
  struct Copy {
    at::Tensor tensor;  // the tensor on the device
    const void* host;   // address in host memory, which may be free again
    c10::Event event;
    std::string_view name;
    bool leaves;
  };
  void settle(std::size_t which);

  const at::Device device_;
  Ledger& ledger_;
  std::optional<c10::Stream> out_, in_;  // one for each way: a link carries both at once
  std::vector<Copy> underway_;
  struct Lasting {
    c10::Event event;
    std::string_view name;
  };
  // The copies that there() awaits, the last of each tensor, by where that lies in host memory.
  std::map<const void*, Lasting> lasting_;
};

// A small tensor of the host, copied to the device in the order of the current stream; nobody
// waits.
at::Tensor sent_to(at::Device device, const at::Tensor& host);

// Allocates host memory. For an accelerator it is page-locked, and booked as Category::host by
// hand: the allocator of such memory tells no ledger.
at::Tensor host_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                       at::Device device, Ledger& ledger);

}  // namespace mw
