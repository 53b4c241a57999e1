// What a search says where it has nothing to recommend: why no mix is possible or none fits, with
// the nearest that is.
#pragma once

#include "search/price.h"
#include "search/whole.h"

namespace mw {

// No candidate is possible. `first`: of what strategies or the model refused; null: nothing.
// Throws Error (search.batch, search.microbatch or search.none).
[[noreturn]] void refuse_all(const SearchRequest& request, const SearchSpace& space,
                             const PricedCandidates& priced, const Problem* first);

// Of so many candidates none that was planned whole fits, or none could be. Throws Error
// (search.memory or search.none).
[[noreturn]] void refuse_whole(const SearchRequest& request, const WholePlans& whole,
                               std::int64_t candidates);

// The share of what there is that it takes, of a device's `limit` bytes or of a host's (0: not
// known).
double filled(const FoundPlan& found, double limit);

}  // namespace mw
