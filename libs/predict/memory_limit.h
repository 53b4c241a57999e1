// What an experiment needs of memory against what it may have, before any rank starts.
#pragma once

#include <cstdint>
#include <string>

#include "predict/memory_hint.h"
#include "script/experiment.h"

namespace mw {

// The highest predicted peak of a rank, in bytes.
std::int64_t predicted_peak(const Plan& plan);

// What to do where the experiment's own limit does not suffice.
std::string memory_hint(const Experiment& experiment, bool runs);

// Throws Error (plan) with that hint if a rank is predicted above the experiment's limit; else
// returns a hint for an allocation that goes over it all the same.
Ledger::LimitHint check_memory_limit(const Experiment& experiment);

// Ranks that are threads share this machine's memory (machine_memory.h). Each throws Error (plan)
// where they are predicted to need more than there is; where the experiment is forced, returns a
// note instead, empty if it fits.
std::string check_machine_memory(const Experiment& experiment, std::int64_t available);
// ... in float64, with the one rank that it is compared with, and what is kept of that.
std::string check_verify_memory(const Experiment& experiment, std::int64_t available);

}  // namespace mw
