// Which device a rank computes on.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>

namespace mw {

// What this process has of a kind of accelerator.
struct DeviceState {
  bool built = false;  // this build, or a plugin that is loaded, has its kernels
  int count = 0;       // that can be used
  std::string why;  // there is none, in libtorch's words: "Found no NVIDIA driver on your system"
};
DeviceState state_of(at::DeviceType type);
// What a machine needs for GPUs, beside a build that has their kernels.
extern const char* const cuda_needs;

// Throws Error (environment) with the key `device` if this process has no such device. `load`
// brings what the build has for it and throws Error if it has none; may be null. For the thread
// that reads scripts, before ranks start.
void check_device(at::DeviceType type, const std::function<void()>& load);

// Ranks of a machine take its devices in turn: where they are more than devices, some share one.
// `local`: which rank of the machine, from 0 on; `rank` of `ranks` of the run.
at::Device device_of(at::DeviceType type, int local, int rank, int ranks);

// For tests: where ranks are instead. Set while none runs; null: nowhere else.
using DeviceChoice = std::function<at::Device(int rank, int ranks)>;
void choose_devices(const DeviceChoice* choice);

}  // namespace mw
