// The mesh that a plan's strategies ask for.
#pragma once

#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/mesh.h"
#include "plan/derive.h"

namespace mw {

// Asks each strategy once for its axes, and keeps them in StrategyChoice::axes. What cannot be
// asked for is a problem that names the plugin: a name that is none, ways below 1 or beyond the
// ranks that a mesh has, an axis that is asked for twice, an entry that stands twice. `wrong`:
// those with other ways that may do.
Mesh ask_axes(std::vector<StrategyChoice>& strategies, Problems& problems,
              std::vector<WrongWays>& wrong);

}  // namespace mw
