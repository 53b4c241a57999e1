// The data values that a run has, and that a model may therefore ask for.
#pragma once

#include <array>
#include <string_view>

#include "meshwright/error.h"
#include "meshwright/graph.h"

namespace mw {

// In the order of Loaded::What. All are indices. Positions have the dim seq, the others (batch,
// seq).
constexpr std::array<std::string_view, 3> data_values{"tokens", "labels", "positions"};

// Adds a problem for each data value of the graph that is used and is another one.
void check_data_values(const Graph& graph, Problems& problems);

}  // namespace mw
