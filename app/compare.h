// mw.compare, and `meshwright compare`, over the engine's comparison.
#pragma once

#include "app/output.h"
#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

// Throws Error with all that a and b do not share and must. Status "interrupted" and no verdict if
// the user stopped it. The key "text" is the summary for people. `output` is told where a function
// of a script is stuck while it trains, which ends the process.
Json run_compare(const Experiment& a, const Experiment& b, Output& output);

}  // namespace mw
