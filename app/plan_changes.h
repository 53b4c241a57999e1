// Says what a pass, or a strategy, changes in a plan: `plan --diff PASS` and `plan --by-strategy`.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

// The plan's programs before and after the pass of that name, as a diff; bytes, peak memory and
// predicted step of both; and whether both are proved. Later passes are in neither. Throws Error,
// with the nearest name, if the plan has no such pass.
Json pass_diff(const RunRequest& asked, const RunSetup& setup, const std::string& pass);

// Plans with none of the experiment's strategies, with the first one, with the first two, and so
// on: what each plan sends, holds and takes, and which transfers its last strategy adds.
Json plan_by_strategy(const RunRequest& asked, const RunSetup& setup);

}  // namespace mw
