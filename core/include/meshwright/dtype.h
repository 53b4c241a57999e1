// Element types of tensors, for headers that know nothing of libtorch.
#pragma once

#include <cstdint>

namespace mw {

enum class Dtype : std::uint8_t { fp64, fp32, bf16, fp16, int64 };

constexpr int bytes_of(Dtype dtype) {
  return dtype == Dtype::fp64 || dtype == Dtype::int64 ? 8 : dtype == Dtype::fp32 ? 4 : 2;
}
const char* name_of(Dtype dtype);  // "fp32"
// The real dtype with more bytes; the first if both have as many.
constexpr Dtype wider(Dtype a, Dtype b) {
  return bytes_of(b) > bytes_of(a) ? b : a;
}

}  // namespace mw
