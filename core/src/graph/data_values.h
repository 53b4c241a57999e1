// The data values that a run supplies, which a model's graph may use.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/inputs.h"

namespace mw {

// Names of the data values that every run has, in the order of Loaded::What. All are indices.
// Positions have the dim seq, the others (batch, seq). Other names are inputs (inputs.h), of any
// dims that begin with batch.
constexpr std::array<std::string_view, 3> data_values{"tokens", "labels", "positions"};

// Adds a problem for each data value that the graph uses but a run cannot supply. `inputs` are the
// inputs that the model declares.
void check_data_values(const Graph& graph, const std::vector<DataInput>& inputs,
                       Problems& problems);

}  // namespace mw
