// What looks at finished plans before they are run or shown. The kernel knows none of these checks:
// whoever links it adds what it has.
#pragma once

#include <functional>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"

namespace mw {

// Adds to `problems` what is wrong with a plan; called from any thread.
using PlanCheck = std::function<void(const Plan& plan, Problems& problems)>;

// From now on the process' plans are looked at by this too. For the main thread, before any plan.
void add_plan_check(PlanCheck check);

// Asks all checks about a plan, unless one of its hash was found right already.
void check_plan(const Plan& plan, Problems& problems);

}  // namespace mw
