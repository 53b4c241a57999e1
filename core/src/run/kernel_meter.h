// Counts the kernels that a rank's thread starts, in a step of which an account is taken.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>

namespace mw {

// A kernel is an op of libtorch that calls no other op, and neither makes a view nor only
// allocates; or a scope RECORD_FUNCTION whose name begins with "meshwright::", as around a launch
// of a kernel of our own. A library's call counts as one, however many kernels it starts.
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

 private:
  at::CallbackHandle handle_ = 0;
  bool runs_ = false;
};

}  // namespace mw
