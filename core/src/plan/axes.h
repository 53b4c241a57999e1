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

// Asks each strategy once for its axes, keeps them in StrategyChoice::axes, and makes the mesh.
// Adds problems that name the plugin: for a name that is not valid, ways below 1 or beyond the
// ranks that a mesh has, an axis that is asked for twice, an entry that stands twice. Adds to
// `wrong` those that other ways may mend.
Mesh ask_axes(std::vector<StrategyChoice>& strategies, Problems& problems,
              std::vector<WrongWays>& wrong);

// The numbers next to `ways`, a few below and a few above, that part `size`: evenly, or into parts
// that are not empty.
WrongWays ways_near(const std::string& strategy, std::int64_t size, int ways, bool even);

// A hint in words: "nearest: tp(2), tp(4)", the next below and the next above; or all: "possible:
// 1, 2, 4".
std::string hint_of(const WrongWays& wrong);

// Keeps in each hint only the ways that the planner takes, found by making the plan with each as
// far as placements go. Where none is left, the hint says so.
void try_nearest(const PlanRequest& request, const std::vector<WrongWays>& wrong,
                 Problems& problems);

std::string name_of(Dim dim);  // in quotes and readable, for messages
// A rule as plans print it: "batch -> dp".
std::string rule_text(Dim dim, const std::string& axis);

// Whether a tensor of the model, or an operand as an op calls it, has the dim.
bool has_dim(const Graph& graph, Dim dim);
// For hints: the dim nearest to `wanted`, then all that an axis can cut in some op.
std::string dims_there_are(const Graph& graph, Dim wanted);
// For hints: the axis nearest to `wanted`, then all.
std::string axes_there_are(const Mesh& mesh, const std::string& wanted);
// The kinds of ops that compute over the dim and let an axis cut it: "linear, rms_norm".
std::string kinds_with(const Graph& graph, Dim dim);
// The kinds of ops that `takes` takes, the first twelve.
std::string kinds_of(const Graph& graph, const std::function<bool(const Op&)>& takes);

}  // namespace mw
