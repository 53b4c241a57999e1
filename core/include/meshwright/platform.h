// Platforms: each stands for the devices of one kind that ranks may compute on ("cpu", "cuda"). An
// experiment names one: device = "cuda". What computes on a device is libtorch's backend for its
// type; the platform says how that backend is loaded, and how the devices are found, counted and
// told apart. A plugin may bring one:
//
//   class Rocm : public mw::Platform {
//    public:
//     at::DeviceType type() const override { return at::kCUDA; }
//     void load() const override;   // loads libtorch_hip.so
//     …
//   };
//   MESHWRIGHT_PLUGIN("rocm", "1.0.0", "AMD's GPUs", mw::device<Rocm>())
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// The defaults ask libtorch's own interfaces, which every backend implements (DeviceGuardImpl,
// hooks, allocator). All functions are const; ranks call count(), id() and new_stream() in their
// threads.
class Platform : public Registered {
 public:
  // What tensors on these devices have. at::kCPU: ranks compute as they do on "cpu".
  virtual at::DeviceType type() const = 0;

  // Brings libtorch's backend into this process. The main thread calls it before ranks start, for
  // each run again; only type(), needs() and files() are called before it. Whoever merely plans for
  // the device does not call it. Throws Error if this installation has no backend. The message
  // names the missing part ("libcudnn.so.9: …"), and the hint says what to install.
  virtual void load() const {}
  // How many devices this process can use.
  virtual int count() const;
  // Where count() is 0: why, for people ("Found no NVIDIA driver on your system"); may be empty.
  virtual std::string why_none() const;
  // What a machine needs beside this installation, a sentence for hints; may be empty.
  virtual std::string needs() const { return ""; }

  // Bytes of memory that a device has. To ask may open it.
  virtual std::int64_t bytes(at::DeviceIndex device) const;
  // Tells a device from all others of all machines. Processes may see one device under different
  // numbers, and must get the same id.
  virtual std::string id(at::Device device) const;
  // Another stream of the device; `urgent`: what is queued on it goes before other work. A device
  // may have a limited number: two may be the same.
  virtual c10::Stream new_stream(at::Device device, bool urgent) const;
  // From now on ops add in one order, so that runs repeat to the bit, or fail. Called after load()
  // where MESHWRIGHT_DETERMINISTIC is set.
  virtual void make_sums_repeat() const;
  // The files by which the driver is reached, which a run in a sandbox may open and drive
  // (--sandbox-device). Libraries that are loaded by the end of the call may be read there, and
  // whatever lies beside them.
  virtual std::vector<std::string> files() const { return {}; }
};

template <>
struct KindOf<Platform> {
  static constexpr Kind kind = Kind::device;
  using Make = std::unique_ptr<Platform>(const Values& values);
};
template <class Class>
constexpr Registration device(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Platform, Class>(name, doc);
}

// "cpu": the cores of this machine, which all its ranks share.
const std::shared_ptr<const Platform>& cpu_platform();

}  // namespace mw
