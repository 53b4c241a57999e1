// Searches the largest microbatches with which a plan's ranks keep a limit of memory.
#pragma once

#include <memory>

#include "meshwright/engine/plan.h"

namespace mw {

// The plan of the request with the fewest microbatches, as even as they can be, of which no rank is
// predicted to hold more than `limit` bytes (Plan::request has what was taken). Null and problems
// if none is, or if the request is refused whatever its microbatches are.
std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems);

// Sizes of microbatches that `own` sequences can be split into evenly, in `fewest` or more: the
// largest first, each once.
std::vector<std::int64_t> even_sizes(std::int64_t own, std::int64_t fewest);

}  // namespace mw
