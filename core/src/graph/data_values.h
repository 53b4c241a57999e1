// The data values that a run supplies, which a model's graph may use.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/inputs.h"

namespace mw {

// What a run brings for a data value, by the value's name. Every run has "tokens" and "labels",
// indices of (batch, seq), and "positions", indices of (seq); "positions of DIM" are indices of
// another dim. All other names are inputs (inputs.h), of any dims that begin with batch.
enum class DataValue : std::uint8_t { tokens, labels, positions, input };
DataValue data_value_of(std::string_view name);

// Adds a problem for each data value that the graph uses but a run cannot supply. `inputs` are the
// inputs that the model declares.
void check_data_values(const Graph& graph, const std::vector<DataInput>& inputs,
                       Problems& problems);

}  // namespace mw
