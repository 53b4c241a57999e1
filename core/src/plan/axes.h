// The axes of a plan: which ones its strategies ask for, the nearest ways that fit where theirs do
// not, and what a model and a mesh have, for messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/mesh.h"
#include "plan/derive.h"

namespace mw {

// Asks each strategy once for its axes, and keeps them in StrategyChoice::axes. What cannot be
// asked for is a problem that names the plugin: a name that is none, ways below 1 or beyond the
// ranks that a mesh has, an axis that is asked for twice, an entry that stands twice. `wrong`:
// those with other ways that may do.
Mesh ask_axes(std::vector<StrategyChoice>& strategies, Problems& problems,
              std::vector<WrongWays>& wrong);

// The numbers next to `ways`, a few below and a few above, that part `size`: evenly, or into parts
// that are not empty.
WrongWays ways_near(const std::string& strategy, std::int64_t size, int ways, bool even);

// "nearest: tp(2), tp(4)": the next below and the next above; "possible: 1, 2, 4": all.
std::string hint_of(const WrongWays& wrong);

// Puts into each hint only what the planner takes, by making the plan with it as far as placements
// go. Where none is, the hint says so.
void try_nearest(const PlanRequest& request, const std::vector<WrongWays>& wrong,
                 Problems& problems);

std::string name_of(Dim dim);  // quoted, readable
// "batch -> dp", as plans print rules.
std::string rule_text(Dim dim, const std::string& axis);

// Whether a tensor of the model, or an operand as an op calls it, has the dim.
bool has_dim(const Graph& graph, Dim dim);
// The dims that an axis can cut in some op, and the axes: the nearest first, then all.
std::string dims_there_are(const Graph& graph, Dim wanted);
std::string axes_there_are(const Mesh& mesh, const std::string& wanted);
// The kinds of ops that compute over the dim and let an axis cut it: "linear, rms_norm".
std::string kinds_with(const Graph& graph, Dim dim);
// The kinds of ops that `takes` takes, a few of many.
std::string kinds_of(const Graph& graph, const std::function<bool(const Op&)>& takes);

}  // namespace mw
