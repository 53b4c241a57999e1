// Finds the nearest valid numbers of ways where a plan is refused, for the message.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "plan/derive.h"

namespace mw {

// The numbers next to `ways`, a few below and a few above, that part `size`: evenly, or into parts
// that are not empty.
WrongWays ways_near(const std::string& strategy, std::int64_t size, int ways, bool even);

// "nearest: tp(2), tp(4)": the next below and the next above; "possible: 1, 2, 4": all.
std::string hint_of(const WrongWays& wrong);

// Puts into each hint only what the planner takes, by making the plan with it as far as placements
// go. Where none is, the hint says so.
void try_nearest(const PlanRequest& request, const std::vector<WrongWays>& wrong,
                 Problems& problems);

}  // namespace mw
