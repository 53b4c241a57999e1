// The data values that a run supplies, which a model's graph may use.
#pragma once

#include <array>
#include <string_view>

#include "meshwright/error.h"
#include "meshwright/graph.h"

namespace mw {

// Names of the data values, in the order of Loaded::What. All are indices. Positions have the dim
// seq, the others (batch, seq).
constexpr std::array<std::string_view, 3> data_values{"tokens", "labels", "positions"};

// Adds a problem for each data value that the graph uses but a run does not supply.
void check_data_values(const Graph& graph, Problems& problems);

}  // namespace mw
