// Recompute: what backward reads and forward need not keep is made again from what is kept (Chen
// et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; Korthikanti et al. 2022, section
// 5).
#pragma once

#include <vector>

#include "meshwright/program.h"

namespace mw {

struct RecomputeSet {
  std::vector<bool> ops;    // of the graph: whether what it makes is made again
  int every = 1;            // layers between what is kept
  bool keep_moves = false;  // what a collective brought is kept, not fetched again
  // What an all-gather of activations brought is never kept, whoever reads it (Korthikanti et al.
  // 2022, section 4.2.2: of what a linear reads whole, its backward needs the parts alone).
  bool gathers = false;
  bool any() const;
};

// Copies forward's instructions, under the phase "recompute", into each backward segment, before
// the first that reads what a block of layers makes again; what only these copies replace is no
// longer kept. What several blocks read, or an op that is not of the set makes, is kept. To be
// called before buckets, passes and completion.
void recompute(Program& program, const RecomputeSet& set);

}  // namespace mw
