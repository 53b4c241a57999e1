// Makes the initial weights of parameters. They depend on (seed, parameter name, global element
// index) alone, so that every rank makes its slice of the same tensor in every mix.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/mesh.h"

namespace mw {

// Fills `out` with the part `ranges` (one for each dim) of the parameter, whose global sizes are
// `shape`. Elements are counted row-major over the whole tensor; element e is one of the four
// normal numbers that Box and Muller's transform makes of the Philox4x32-10 [Salmon et al. 2011]
// block e/4, keyed by seed and name. Computed in double and rounded to out's type, so that fp32 and
// fp64 runs start alike. `out` has the ranges' sizes and may lie on any device.
void fill_slice(const at::Tensor& out, const Value& value, std::uint64_t seed,
                const std::vector<std::int64_t>& shape, const std::vector<Range>& ranges);

// Fills `out` with the whole tensor.
void fill(const at::Tensor& out, const Value& value, std::uint64_t seed);

}  // namespace mw
