// A rank's part of an input that a model declares (inputs.h).
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/engine/rank_view.h"

namespace mw {

// The whole rows of the rank's samples are read, and the rank's part is taken from them.
struct InputCut {
  Range rows;                       // rows of the microbatch
  std::vector<std::int64_t> shape;  // of a whole row
  std::vector<std::int64_t> local;  // of the rank's part, rows included
  // For each dim of a row, the rank's ranges in the order in which they lie. At most one dim has
  // several ranges.
  std::vector<std::vector<Range>> parts;
  bool indices = false;
  bool copies = false;  // whether the part is a copy, and not the rows that are read

  std::int64_t bytes_read() const;
};

InputCut input_cut(const RankView& rank, int slot);

}  // namespace mw
