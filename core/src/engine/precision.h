// ATen types of what a program computes with and keeps.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "engine/optimizer.h"
#include "meshwright/program.h"
#include "plan/plan.h"

namespace mw {

// By the bytes of an element (Program::element, gradient_element, master_element); of 2 bytes, which it is
// (Program::half).
inline at::ScalarType real_type(int element, bool half) {
  if (element > 2) return element == 8 ? at::kDouble : at::kFloat;
  return half ? at::kHalf : at::kBFloat16;
}
inline at::ScalarType real_type(const Program& program, int element) {
  return real_type(element, program.half);
}

inline at::ScalarType type_of(const Program& program, const Slot& slot) {
  if (slot.scalar == Scalar::index) return at::kLong;
  return real_type(program, slot.fp32_at_least ? std::max(program.element, 4) : program.element);
}

// What an optimizer keeps for each element of a parameter: its states, and the master copy where it is
// not the parameter itself that it updates. In bytes.
inline StateBytes optimizer_bytes(const Optimizer& optimizer, int element, int master) {
  const at::ScalarType type = real_type(std::max(element, master), false);
  return {optimizer.bytes_per_element(type, false) + master,
          optimizer.bytes_per_element(type, true) + master};
}
inline StateBytes optimizer_bytes(const Program& program, const Optimizer& optimizer) {
  return optimizer_bytes(optimizer, program.element, program.master_element);
}

}  // namespace mw
