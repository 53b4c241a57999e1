// The key `ranks` of an experiment: how many ranks its author takes the plan to have.
#pragma once

#include <cstdint>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"

namespace mw {

// Adds a problem where the plan has another number of ranks than `expected`, with both numbers and
// the plan nearest to it that has so many: one strategy in another number of ways, as far as the
// planner takes it; strategies that split the data are tried first.
void check_ranks(std::int64_t expected, const Plan& plan, Problems& problems);

}  // namespace mw
