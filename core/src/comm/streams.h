// Streams and events of an accelerator. All work of a rank on another of its streams (collectives,
// copies to and from host memory) is ordered by the events of this file. No memory is marked as in
// use by another stream (record_stream). Instead, code that passes a tensor to another stream keeps
// it until its own stream waits for that one, so that memory is freed at the same place in each
// run.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>

#include "meshwright/platform.h"

namespace mw {

// The stream to which the calling thread's ops on this device go.
c10::Stream current_stream(at::Device device);
// Platform::new_stream of the platform of the calling thread's DeviceScope.
c10::Stream new_stream(at::Device device, bool urgent = false);

// Records an event behind all work that is queued on the stream. `timed`: whether elapsedTime() of
// the event can be called.
c10::Event record_event(c10::Stream stream, bool timed = false);

// For tests: a function that is called with the name of each wait of a stream for an event, and
// leaves the wait out if it returns true. Set while no rank runs; null: no wait is left out.
using LeaveOut = std::function<bool(const std::string& wait, c10::Stream, const c10::Event&)>;
void leave_waits_out(const LeaveOut* which);
const LeaveOut* waits_left_out();

// Makes work that is queued on the stream from now on wait for the event. `name()`: the name of the
// wait, the same in every run of a plan; called only in tests.
template <class Name>
void wait_for(c10::Stream stream, const c10::Event& event, const Name& name) {
  if (const LeaveOut* which = waits_left_out(); which != nullptr && (*which)(name(), stream, event))
    return;
  event.block(stream);
}

// The device of the calling thread's rank: that of its DeviceScope, else the CPU.
at::Device rank_device();

// Makes a platform that of the calling thread's rank (rank_platform()) while it lives.
class PlatformScope {
 public:
  explicit PlatformScope(const Platform& platform);
  ~PlatformScope();
  PlatformScope(const PlatformScope&) = delete;
  PlatformScope& operator=(const PlatformScope&) = delete;

 private:
  const Platform* before_;
};

// Sets a rank's thread up for its device while it lives: the device is current, with a stream of
// the rank's own, and autograd runs in the rank's thread (not in autograd's thread for the device,
// which all ranks on the device would share). Does nothing on the CPU.
class DeviceScope {
 public:
  DeviceScope(const Platform& platform, at::Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mw
