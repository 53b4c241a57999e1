// Streams and devices of ranks, by c10's interface that every accelerator's backend implements.
#include "comm/streams.h"

#include <c10/core/AutogradState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <utility>

namespace mw {
namespace {

std::atomic<const LeaveOut*> left_out_waits{nullptr};
thread_local at::Device device_of_thread = at::kCPU;
thread_local const Platform* platform_of_thread = nullptr;

}  // namespace

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream new_stream(at::Device device, bool urgent) {
  const Platform* const platform = platform_of_thread;
  return (platform != nullptr ? *platform : *cpu_platform()).new_stream(device, urgent);
}

c10::Event record_event(c10::Stream stream, bool timed) {
  c10::Event event(stream.device_type(),
                   timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  event.record(stream);
  return event;
}

void leave_waits_out(const LeaveOut* which) {
  left_out_waits = which;
}

const LeaveOut* waits_left_out() {
  return left_out_waits.load(std::memory_order_relaxed);
}

at::Device rank_device() {
  return device_of_thread;
}

const Platform* rank_platform() {
  return platform_of_thread;
}

PlatformScope::PlatformScope(const Platform& platform)
    : before_(std::exchange(platform_of_thread, &platform)) {}
PlatformScope::~PlatformScope() {
  platform_of_thread = before_;
}

struct DeviceScope::State {
  State(const Platform& platform, at::Device device)
      : of_thread(platform), guard(device), stream(platform.new_stream(device, /*urgent=*/false)) {
    autograd.set_multithreading_enabled(false);
    device_of_thread = device;
  }
  ~State() {
    autograd.set_multithreading_enabled(threads);
    device_of_thread = at::kCPU;
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  const PlatformScope of_thread;
  const bool threads = autograd.get_multithreading_enabled();
  c10::DeviceGuard guard;
  c10::StreamGuard stream;
};

DeviceScope::DeviceScope(const Platform& platform, at::Device device)
    : state_(device.is_cpu() ? nullptr : std::make_unique<State>(platform, device)) {}
DeviceScope::~DeviceScope() = default;

}  // namespace mw
