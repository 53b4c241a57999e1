// Says what a pass, or a strategy, changes in a plan: `plan --diff PASS` and `plan --by-strategy`.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

// The plan's programs before the pass of that name and after it, as a diff; bytes, peak memory and
// predicted step of both; and whether both are proved. Passes behind it are in neither. Throws
// Error where the plan has no such pass, with the nearest.
Json pass_diff(const RunRequest& asked, const RunSetup& setup, const std::string& pass);

// The plan of the first strategy of the experiment, of the first two, and so on: what each sends,
// holds and takes, and what that is more than without the last one.
Json plan_by_strategy(const RunRequest& asked, const RunSetup& setup);

}  // namespace mw
