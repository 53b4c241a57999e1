// Element-wise reduction of n buffers into m buffers in host memory.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace mw::comm {

enum class Combine : std::uint8_t { sum, average, product, min, max };
const char* name_of(Combine combine);

// Every output gets in[0] + in[1] + … (in that order, whoever calls), for `count` elements that
// begin `first` elements into each buffer. Sums are kept in the type that ATen accumulates in
// (float for bf16 and fp16) and rounded once; integers wrap, bool is "or" / "and", max and min keep
// a NaN. An output may be one of the inputs; otherwise buffers must not overlap.
// Throws Error (run) for a dtype that it lacks, or an average of integers.
void reduce(c10::ScalarType dtype, Combine combine, std::span<const std::byte* const> in,
            std::span<std::byte* const> out, std::int64_t first, std::int64_t count);

// Throws as reduce() would, before any rank waits.
void check_reducible(c10::ScalarType dtype, Combine combine);

}  // namespace mw::comm
