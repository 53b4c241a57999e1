// Copies between a rank's device and host memory, and the waits that order them with what the rank
// computes.
#include "run/host_copy.h"

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/streams.h"

namespace mw {

namespace {

at::Tensor locked(const at::Tensor& host) {
  at::Tensor copy = at::empty(host.sizes(), host.options().pinned_memory(true));
  copy.copy_(host);
  return copy;
}

}  // namespace

at::Tensor HostCopies::to_host(const at::Tensor& tensor, std::string_view name) {
  const at::Tensor like = at::empty_like(tensor, tensor.options().device(at::kMeta));
  at::Tensor host =
      host_memory(like.sizes(), like.strides(), tensor.scalar_type(), device_, ledger_);
  back(host, tensor, name);
  return host;
}

void HostCopies::back(const at::Tensor& host, const at::Tensor& tensor, std::string_view name) {
  for (std::size_t k = 0; k < underway_.size(); ++k) {
    if (underway_[k].leaves) settle(k--);
  }
  copy(host, tensor, name, false);
}

void HostCopies::copy(const at::Tensor& to, const at::Tensor& from, std::string_view name,
                      bool lasts) {
  if (device_.is_cpu()) {
    to.copy_(from);
    return;
  }
  const bool leaves = to.is_cpu();
  const at::Tensor &host = leaves ? to : from, &tensor = leaves ? from : to;
  std::optional<c10::Stream>& stream = leaves ? out_ : in_;
  if (!stream) stream = new_stream(device_);
  // The copy waits for all computed so far: its source is then there, its target's memory free.
  wait_for(*stream, record_event(current_stream(device_)),
           [&] { return fmt::format("copy of {} comes after what was computed", name); });
  for (const Copy& before : underway_) {
    if (!leaves && before.leaves && before.host == host.const_data_ptr())
      wait_for(*stream, before.event,
               [&] { return fmt::format("copy of {} comes after it left", name); });
  }
  const c10::StreamGuard guard(*stream);
  to.copy_(from, /*non_blocking=*/true);
  underway_.push_back({tensor, host.const_data_ptr(), record_event(*stream), name, leaves});
  if (lasts) lasting_.insert_or_assign(host.const_data_ptr(), Lasting{record_event(*stream), name});
}

void HostCopies::there(const at::Tensor& host) {
  const auto copy = lasting_.find(host.const_data_ptr());
  if (copy == lasting_.end()) return;
  const auto& [event, name] = copy->second;
  const LeaveOut* which = waits_left_out();
  const bool left_out =
      which != nullptr &&
      (*which)(fmt::format("the host awaits the copy of {}", name), current_stream(device_), event);
  if (!left_out) event.synchronize();
  lasting_.erase(copy);
}

// The tensor is allocated on the rank's own stream, which frees it.
at::Tensor HostCopies::to_device(const at::Tensor& host, std::string_view name, bool lasts) {
  at::Tensor tensor = at::empty_like(host, host.options().device(device_).pinned_memory(false));
  copy(tensor, host, name, lasts);
  return tensor;
}

at::Tensor HostCopies::brought(const at::Tensor& host, std::string_view name) {
  return device_.is_cpu() ? host : to_device(locked(host), name);
}

void HostCopies::settle(std::size_t which) {
  const Copy& copy = underway_[which];
  wait_for(current_stream(device_), copy.event,
           [&] { return fmt::format("copy of {} is awaited", copy.name); });
  underway_.erase(underway_.begin() + static_cast<std::ptrdiff_t>(which));
}

void HostCopies::touch(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  for (std::size_t k = 0; k < underway_.size(); ++k) {
    if (underway_[k].tensor.is_alias_of(tensor)) settle(k--);
  }
}

void HostCopies::finish() {
  while (any()) settle(0);
}

void HostCopies::land() {
  finish();
  for (const auto& stream : {out_, in_})
    if (stream) stream->synchronize();
}

bool HostCopies::brings(const at::Tensor& tensor) const {
  return std::any_of(underway_.begin(), underway_.end(),
                     [&](const Copy& copy) { return !copy.leaves && copy.tensor.is_same(tensor); });
}

c10::Stream HostCopies::stream_of(const at::Tensor& tensor) {
  std::erase_if(underway_, [&](const Copy& copy) { return copy.tensor.is_same(tensor); });
  return *in_;
}

at::Tensor sent_to(at::Device device, const at::Tensor& host) {
  return device.is_cpu() ? host : locked(host).to(device, /*non_blocking=*/true);
}

at::Tensor host_memory(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                       at::Device device, Ledger& ledger) {
  const auto options = at::TensorOptions().dtype(dtype);
  if (device.is_cpu()) return at::empty_strided(sizes, strides, options);
  const at::Tensor locked = at::empty_strided(sizes, strides, options.pinned_memory(true));
  void* data = locked.mutable_data_ptr();
  const Ledger::Scope scope(ledger, Category::host);
  ledger.allocated(data, static_cast<std::int64_t>(locked.nbytes()));
  const auto let_go = [locked, &ledger](void* address) { ledger.freed(address); };
  return at::from_blob(data, sizes, strides, let_go, options);
}

}  // namespace mw
