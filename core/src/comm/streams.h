// Streams and events of an accelerator. Everything of a rank that goes to another of its streams
// (collectives, copies to and from host memory) is ordered by what is here; no memory is marked as
// in use elsewhere (record_stream): whoever gives a tensor to another stream holds it until its own
// stream has been told to wait, so that memory is free at the same place in every run.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>

#include "meshwright/platform.h"

namespace mw {

// To which the calling thread's ops on this device go.
c10::Stream current_stream(at::Device device);
// Another one, by the platform of the calling thread's DeviceScope.
c10::Stream new_stream(at::Device device, bool urgent = false);

// What is queued on the stream now lies before it. `timed`: elapsedTime() can be asked.
c10::Event record_event(c10::Stream stream, bool timed = false);

// A test's choice, asked before each wait of a stream for an event, by its name; true leaves it
// out. It is set while no rank runs; null: none is left out.
using LeaveOut = std::function<bool(const std::string& wait, c10::Stream, const c10::Event&)>;
void leave_waits_out(const LeaveOut* which);
const LeaveOut* waits_left_out();

// What is queued on the stream from now on begins after the event. `name()`: what waits for what;
// the same in every run of a plan. It is asked for in tests alone.
template <class Name>
void wait_for(c10::Stream stream, const c10::Event& event, const Name& name) {
  if (const LeaveOut* which = waits_left_out(); which != nullptr && (*which)(name(), stream, event))
    return;
  event.block(stream);
}

// What the calling thread's rank computes on: the CPU, unless a DeviceScope says otherwise.
at::Device rank_device();

// A rank's thread on its device: that is current, with a stream of the rank's own, and autograd
// stays in the thread (its thread of a device would serve all ranks that share the device). On the
// CPU it does nothing.
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
