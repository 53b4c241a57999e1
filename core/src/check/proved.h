// The proof of a plan, as a check that plans pass before they are run or shown.
#pragma once

#include "meshwright/error.h"
#include "plan/plan.h"
#include "prove/prove.h"

namespace mw {

// Proves the plan's programs. Where that fails and a pass of a strategy has brought it about, the
// refusals say so (Refusal::by, key).
Proof prove_plan(const Plan& plan, const ProveOptions& options = {});

// A PlanCheck: what keeps the plan from being proved is a problem of Stage::plan.
void check_proved(const Plan& plan, Problems& problems);

}  // namespace mw
