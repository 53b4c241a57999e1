// mw.compare, and `meshwright compare`, over the engine's comparison.
#pragma once

#include "input/experiment.h"
#include "meshwright/json.h"

namespace mw {

// Throws Error with all that a and b do not share and must. Status "interrupted" and no verdict if
// the user stopped it. The key "text" is the summary for people.
Json run_compare(const Experiment& a, const Experiment& b);

}  // namespace mw
