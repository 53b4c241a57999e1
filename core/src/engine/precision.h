// The ATen type of a precision.
#pragma once

#include <ATen/ATen.h>

#include "plan/plan.h"

namespace mw {

inline at::ScalarType scalar_type_of(Precision precision) {
  return precision == Precision::fp64 ? at::kDouble : at::kFloat;
}

}  // namespace mw
