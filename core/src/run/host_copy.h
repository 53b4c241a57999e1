// Copies tensors between a rank's device and host memory: on a stream for each way, beside what the
// rank computes. Where the device is the CPU, a copy is made at once. Predictions play the same
// waits (predict/host_lanes.h).
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

// `name`s tell copies apart where a wait for one is left out by a test. They outlive the copies.
class HostCopies {
 public:
  HostCopies(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}

  // In page-locked memory, booked as host memory. One tensor at a time is on its way and is kept
  // until it is there, the others are waited for: so the memory held is the same in every run.
  at::Tensor to_host(const at::Tensor& tensor, std::string_view name);
  // Copies a tensor as to_host() does, into memory that there is. A copy of `host` to the device
  // that begins later waits for it.
  void back(const at::Tensor& host, const at::Tensor& tensor, std::string_view name);
  // Copies between two tensors, one on the device and one in host memory; to the device, once what
  // leaves for that memory is there. Several such copies may be under way. `lasts`: so does the
  // tensor in host memory, and the host calls there() before it reads or writes that.
  void copy(const at::Tensor& to, const at::Tensor& from, std::string_view name, bool lasts = true);
  // Waits, on the host, for the last copy to or from this tensor in host memory that `lasts`.
  void there(const at::Tensor& host);
  // copy() into a tensor of its own on the device.
  at::Tensor to_device(const at::Tensor& host, std::string_view name, bool lasts = false);
  // What lies on the CPU on the device: itself where that is the CPU. Whoever made it may let it go
  // and not write to it.
  at::Tensor brought(const at::Tensor& host, std::string_view name);

  // Anything of this is under way. Before the rank's own stream reads, writes or frees a tensor
  // that is: touch() makes it wait.
  bool any() const { return !underway_.empty(); }
  void touch(const at::Tensor& tensor);
  void finish();  // all of them
  void land();    // the host waits until all are there

  // Whether it is a tensor of to_device() that is on its way.
  bool brings(const at::Tensor& tensor) const;
  // The stream on which a tensor of to_device() arrives, for whoever queues there what reads it,
  // and keeps it until the rank's own stream has waited for that; touch() will not wait for it.
  c10::Stream stream_of(const at::Tensor& tensor);

 private:
  struct Copy {
    at::Tensor tensor;  // on the device
    const void* host;   // where it lies there; that memory may be free again
    c10::Event event;
    std::string_view name;
    bool leaves;
  };
  void settle(std::size_t which);

  const at::Device device_;
  Ledger& ledger_;
  std::optional<c10::Stream> out_, in_;  // a link carries both ways at once
  std::vector<Copy> underway_;
  struct Lasting {
    c10::Event event;
    std::string_view name;
  };
  // The copies that there() awaits, the last of each tensor, by where that lies in host memory.
  std::map<const void*, Lasting> lasting_;
};

// A small tensor of the host on the device, in the order of the current stream; nobody waits.
at::Tensor sent_to(at::Device device, const at::Tensor& host);

// Page-locked where `device` is none of the host's own, and then booked in the ledger by hand: its
// allocator tells nobody. As Category::host.
at::Tensor host_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                       at::Device device, Ledger& ledger);

}  // namespace mw
