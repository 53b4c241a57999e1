// A platform stands for one kind of devices on which ranks may compute ("cpu", "cuda"). An
// experiment names it: device = "cuda". libtorch's backend for the device type runs the kernels;
// the platform loads this backend, and finds, counts and identifies the devices. A plugin may
// implement a platform:
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

// A kernel that a platform has compiled for a device.
class DeviceKernel {
 public:
  DeviceKernel() = default;
  DeviceKernel(const DeviceKernel&) = delete;
  DeviceKernel& operator=(const DeviceKernel&) = delete;
  virtual ~DeviceKernel() = default;
  // Queues the kernel on the calling thread's current stream of the device. `argument` points at
  // the value of the kernel's one parameter. Threads may call it at the same time.
  virtual void launch(std::int64_t blocks, int threads, const void* argument) const = 0;
};

// The default implementations use interfaces that every libtorch backend implements
// (DeviceGuardImpl, hooks, allocator). Ranks call count(), id() and new_stream() in their own
// threads.
class Platform : public Registered {
 public:
  // The device type of tensors. at::kCPU: ranks compute as on "cpu".
  virtual at::DeviceType type() const = 0;

  // Loads libtorch's backend into this process. The main thread calls it before the ranks of each
  // run start; only type(), needs() and files() may be called earlier. Planning for a device does
  // not call it. Throws Error if this installation has no backend. The message names the missing
  // part ("libcudnn.so.9: …"), and the hint says what to install.
  virtual void load() const {}
  // The number of devices that this process can use.
  virtual int count() const;
  // If count() is 0, the reason, for people ("Found no NVIDIA driver on your system"); may be
  // empty.
  virtual std::string why_none() const;
  // What a machine needs beside this installation: a sentence for hints; may be empty.
  virtual std::string needs() const { return ""; }

  // Bytes of memory of a device, and those of them that nobody uses. The calls may initialise the
  // device.
  virtual std::int64_t bytes(at::DeviceIndex device) const;
  virtual std::int64_t free_bytes(at::DeviceIndex device) const;
  // An id that is unique among the devices of all machines. Processes that see one device under
  // different numbers must get the same id.
  virtual std::string id(at::Device device) const;
  // Returns another stream of the device. `urgent`: its work goes before other work. A device may
  // have a limited number of streams, so two calls may return the same one.
  virtual c10::Stream new_stream(at::Device device, bool urgent) const;
  // A stream as the device's own functions take it.
  virtual void* native(const c10::Stream& stream) const;
  // Compiles a text of CUDA C++ with a kernel `name`, declared extern "C", that includes no header.
  // nullptr: this platform compiles no texts. Throws an exception with what the compiler says. A
  // kernel is kept to the end of the process, longer than the platform, which it must not need.
  virtual std::unique_ptr<const DeviceKernel> compile(at::Device device, const std::string& text,
                                                      const char* name) const;
  // Makes ops add in a fixed order, or fail, so that runs repeat bit for bit. Called after load()
  // if MESHWRIGHT_DETERMINISTIC is set, unless type() is at::kCPU.
  virtual void make_sums_repeat() const;
  // The device files of the driver, which a run in a sandbox may open and control
  // (--sandbox-device). The run may also read the libraries that are loaded when the call returns,
  // and the files beside these libraries.
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

// The platform of the calling thread's rank; nullptr where the thread computes on the CPU.
const Platform* rank_platform();

// The stream of the calling thread's rank, as the device's own functions take it: for kernels that
// a plugin launches itself, around which it puts RECORD_FUNCTION("meshwright::NAME", {}), so that
// an account counts them. The rank computes on a platform.
void* native_stream(at::Device device);

// The platform "cpu": the cores of this machine, which all its ranks share.
const std::shared_ptr<const Platform>& cpu_platform();

}  // namespace mw
