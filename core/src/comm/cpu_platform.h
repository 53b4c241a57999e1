// The platform of CPUs.
#pragma once

#include "meshwright/platform.h"

namespace mw {

class CpuPlatform final : public Platform {
 public:
  at::DeviceType type() const override { return at::kCPU; }
  int count() const override { return 1; }
};

}  // namespace mw
