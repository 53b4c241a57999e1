// Counts the kernels that a rank's thread starts, in a step of which an account is taken.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace mw {

// A kernel is an op of libtorch that calls no other kernel, and neither makes a view nor only
// allocates. A scope RECORD_FUNCTION with a name that begins with "meshwright::" counts as one too:
// such a scope stands around each launch of a fused kernel. A library's call counts as one, however
// many kernels it starts. Kernels of other threads are not counted, so that what libtorch
// differentiates on an accelerator, in a thread of its own, is missing.
class KernelMeter {
 public:
  KernelMeter() = default;
  ~KernelMeter() { end(); }
  KernelMeter(const KernelMeter&) = delete;
  KernelMeter& operator=(const KernelMeter&) = delete;

  void begin();  // on the thread whose kernels are to be counted
  void end();
  // Kernels since begin(), or since the last call.
  std::int64_t taken();
  // Calls `call`, whose kernels are not counted.
  template <class Call>
  void uncounted(const Call& call) {
    const std::int64_t before = counted();
    call();
    set_counted(before);
  }

 private:
  static std::int64_t counted();
  static void set_counted(std::int64_t kernels);
  at::CallbackHandle handle_ = 0;
  bool runs_ = false;
};

}  // namespace mw
