// An experiment's memory limit, before any rank starts: whether its plan keeps it, and which one would.
#pragma once

#include <cstdint>
#include <string>

#include "engine/experiment.h"

namespace mw {

// The highest predicted peak of a rank, in bytes.
std::int64_t predicted_peak(const Plan& plan, const Optimizer& optimizer);

// What to do where the experiment's limit does not suffice: the first plan whose predicted peak is within
// it and below the experiment's own, as a script has it, with that peak. `runs`: of no more ranks than can
// be threads here. In this order: ZeRO 1, 2, 3 over the data-parallel
// ways; smaller microbatches; both; where the plan is not data parallel, ZeRO 3 over 2, 4, 8, ... ways,
// then these with microbatches of 1. Says so, and the lowest, if none is.
std::string memory_hint(const Experiment& experiment, bool runs);

// Throws Error (plan) with that hint if a rank is predicted above the experiment's limit; else returns
// the hint, for an allocation that goes over it all the same.
std::string check_memory_limit(const Experiment& experiment);

}  // namespace mw
