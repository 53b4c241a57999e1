// What tells experiments apart.
#pragma once

#include <string>

#include "input/experiment.h"

namespace mw {

// 16 hex digits over the plans' hashes and all else that decides what is computed, how long it
// takes or whether it may run: seed, data, weights, steps, threads, memory, check. Not in it: name,
// log, observe, timeout, force, and where functions were written.
std::string experiment_hash(const Experiment& experiment);

}  // namespace mw
