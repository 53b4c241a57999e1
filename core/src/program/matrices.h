// What updates of matrices (Code::direct, and Code::update of a parameter) take on one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "meshwright/program.h"
#include "program/rank_view.h"

namespace mw {

struct DirectSize {
  std::int64_t elements = 0;  // whose momentum the rank keeps
  std::int64_t widened = 0;  // bytes of their gradients in the optimizer's precision, if made apart
  std::int64_t made = 0;  // bytes that the outputs keep; 0: they lie in the gradients' own tensor
  std::int64_t payload = 0;  // of the all-gather; 0: none
};
DirectSize direct_size(const RankView& rank, const Instruction& direct);

// A parameter's matrices on one rank, as they lie in the whole direction.
struct MatrixUpdate {
  std::int64_t stacked = 1, rows = 1, columns = 1;
  std::vector<Range> own;  // of each dim of the whole direction: where the rank's parameter lies
  std::int64_t first = 0;  // its first element in the bucket
  std::int64_t begin = 0, end = 0;  // its elements that the rank updates, from its first on
  // Newton-Schulz: each step 4 m^2 n + 2 m^3 for a matrix of m by n, m <= n. 0 if the rank updates no element.
  double flops = 0;
  std::int64_t workspace = 0;  // highest of what it allocates and lets go
};
MatrixUpdate matrix_update(const RankView& rank, const Instruction& update);

}  // namespace mw
