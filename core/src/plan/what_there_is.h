// What a model and a mesh have, for messages about names that they lack:
// the nearest first, then all.
#pragma once

#include <functional>
#include <string>

#include "meshwright/graph.h"
#include "meshwright/mesh.h"

namespace mw {

std::string name_of(Dim dim);  // quoted, readable
// "batch -> dp", as plans print rules.
std::string rule_text(Dim dim, const std::string& axis);

// Whether a tensor of the model, or an operand as an op calls it, has the dim.
bool has_dim(const Graph& graph, Dim dim);
// The dims that an axis can cut in some op.
std::string dims_there_are(const Graph& graph, Dim wanted);
std::string axes_there_are(const Mesh& mesh, const std::string& wanted);
// The kinds of ops that compute over the dim and let an axis cut it: "linear, rms_norm".
std::string kinds_with(const Graph& graph, Dim dim);
// The kinds of ops that `takes` takes, a few of many.
std::string kinds_of(const Graph& graph, const std::function<bool(const Op&)>& takes);

}  // namespace mw
