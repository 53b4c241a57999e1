// The cheapest recomputation with which a plan's ranks keep a limit of memory.
#pragma once

#include "meshwright/engine/plan.h"

namespace mw {

// Works it out from the plan that keeps everything: ops are put in the order of what making their
// results again costs for each byte that is then not kept; the fewest of them that suffice, in all
// layers, are taken; then each, the dearest first, is let off again in as many layers as the limit
// allows. A plan of a fixed set is made from it. Null, and a problem with the least that is
// possible, if not even all suffice.
std::shared_ptr<const Plan> fit_recompute(const PlanRequest& request, Problems& problems);

}  // namespace mw
