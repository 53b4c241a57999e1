// How a rank carries out an op of the optimizer that treats one element at a time: where, in what
// pieces, and what is copied for it. run/executor_update does it; the footprint says what it takes.
#pragma once

#include <cstdint>

#include "meshwright/engine/rank_view.h"
#include "meshwright/program.h"

namespace mw {

struct UpdateSteps {
  std::int64_t elements =
      0;  // of the bucket's that the rank updates, or of the directions it makes
  std::int64_t at_a_time = 0;       // in pieces of so many
  bool casts = false;               // a piece of the gradient is a copy in the optimizer's dtype
  bool host = false;                // in host memory, where the state lies: the gradient goes there
  bool fetches_parameters = false;  // ... and so do the parameters, which then come back
};
// Of `direction`, and of `apply` on a bucket or on a parameter's matrices.
UpdateSteps update_steps(const RankView& rank, const Instruction& update);

}  // namespace mw
