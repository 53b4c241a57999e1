// From a draft's rules to the programs of the stages.
#pragma once

#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/strategy.h"
#include "plan/derive.h"

namespace mw {

// Derives placements, parts the layers, builds a program for each stage, makes the schedule (again,
// with what its works take, where it wants that or a memory limit), lays the programs along it and
// runs the draft's passes. Needs the plan's request, mesh, graph and microbatches; sets its
// programs and schedule. Adds problems (plan) instead where something does not go,
// and to `wrong` what they are of.
void make_programs(Plan& plan, Draft& draft, Problems& problems, std::vector<WrongWays>& wrong);

}  // namespace mw
