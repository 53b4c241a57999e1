// A platform whose device is the CPU. Ops run fused kernels on tensors in host memory there, and
// the C++ compiler that built the tests compiles the kernels' texts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "meshwright/platform.h"

namespace mw::test {

class FusedOnCpu final : public Platform {
 public:
  at::DeviceType type() const override { return at::kCPU; }
  // Where MESHWRIGHT_FUSED_TEXTS names a folder, writes the text to a file there, and compiles
  // nothing.
  std::unique_ptr<const DeviceKernel> compile(at::Device device, const std::string& text,
                                              const char* name) const override;
};

// How many texts were compiled, and how many kernels ran, in this process.
int fused_compiled();
int fused_runs();

}  // namespace mw::test
