// What an optimizer keeps beside the parameters of a program.
#pragma once

#include "engine/optimizer.h"
#include "meshwright/program.h"
#include "program/memory.h"
#include "program/scalar_type.h"

namespace mw {

// What an optimizer keeps for each element of a parameter: its states, and the master copy where it is
// not the parameter itself that it updates. In bytes.
inline StateBytes optimizer_bytes(const Optimizer& optimizer, Dtype dtype) {
  const Dtype wide = wider(dtype, Dtype::fp32);
  const int master = wide == dtype ? 0 : bytes_of(wide);
  return {optimizer.bytes_per_element(scalar_type(wide), false) + master,
          optimizer.bytes_per_element(scalar_type(wide), true) + master};
}
inline StateBytes optimizer_bytes(const Program& program, const Optimizer& optimizer) {
  return optimizer_bytes(optimizer, program.dtype);
}

}  // namespace mw
