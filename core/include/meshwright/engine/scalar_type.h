// Converts an element type to ATen's.
#pragma once

#include <ATen/ATen.h>

#include "meshwright/dtype.h"

namespace mw {

inline at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::fp64:
      return at::kDouble;
    case Dtype::fp32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::fp16:
      return at::kHalf;
    case Dtype::int64:
      break;
  }
  return at::kLong;
}

}  // namespace mw
