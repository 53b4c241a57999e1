// Where the matrices of a parameter lie on one rank, and which of their elements it updates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/program.h"

namespace mw {

// A parameter's matrices on one rank, as they lie in the whole direction.
struct MatrixUpdate {
  std::int64_t stacked = 1, rows = 1, columns = 1;
  std::vector<Range> own;  // of each dim of the whole direction: where the rank's parameter lies
  std::int64_t first = 0;  // its first element in the bucket
  std::int64_t begin = 0, end = 0;  // its elements that the rank updates, from its first on
  std::int64_t apart = 0;  // bytes of the rank's own, copied out of what does not lie in one piece
};
MatrixUpdate matrix_update(const RankView& rank, const Instruction& update);

}  // namespace mw
