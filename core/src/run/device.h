// Which device a rank computes on.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

namespace mw {

// Throws Error (environment) with the key `device` if this process has no such device. `load`
// brings what the build has for it and throws Error if it has none; may be null. For the thread
// that reads scripts, before ranks start.
void check_device(at::DeviceType type, const std::function<void()>& load);

// Ranks of a machine take its devices in turn: where they are more than devices, some share one.
// `local`: which rank of the machine, from 0 on; `rank` of `ranks` of the run.
at::Device device_of(at::DeviceType type, int local, int rank, int ranks);

// A test's choice of where ranks are instead. It is set while none runs; null: nowhere else.
using DeviceChoice = std::function<at::Device(int rank, int ranks)>;
void choose_devices(const DeviceChoice* choice);

}  // namespace mw
