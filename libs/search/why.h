// Why a search recommends a plan: what its step is made of, and what its neighbours lose.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "search/price.h"
#include "search/search.h"

namespace mw {

// "plan = { dp(8) }, microbatch = 4, recompute = \"none\"".
std::string settings_text(const FoundPlan& found);
// "1.21 s a step: 81 % compute, 7 % tp exposed, 12 % bubble; 61 GiB of 80 GiB a rank".
std::string what_limits(const FoundPlan& found);
// "plan = …: +12.0 %", or "does not fit, needs 92 GiB of 80 GiB".
std::string what_loses(const FoundPlan& best, const FoundPlan& other, std::int64_t memory);

// Candidates that differ from it in one thing: the ways inside a layer, the stages, what splits the
// batch, the microbatch, what is computed again, the schedule. Of each such change the fastest by
// the closed form, whether it fits or not; of microbatches the next smaller and the next larger.
std::vector<SearchCandidate> neighbours(const SearchCandidate& of,
                                        const std::vector<SearchCandidate>& all);

// What to do where none fits a device's memory of `limit` bytes, `nearest` by the least: what fills
// a rank, and which of `all` the host memory of a node keeps out (0: what it holds is not known).
std::string memory_hint(const FoundPlan& nearest, const std::vector<FoundPlan>& all, double limit,
                        double host_limit);

}  // namespace mw
