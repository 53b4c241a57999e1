// Checks the data values that a model's graph uses against those that a run supplies.
#pragma once

#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/inputs.h"

namespace mw {

// Adds a problem for each data value that the graph uses but a run cannot supply. `inputs` are the
// inputs that the model declares.
void check_data_values(const Graph& graph, const std::vector<DataInput>& inputs,
                       Problems& problems);

// Adds a problem if no loss of the graph is of a masked form, and for each loss of labels that is
// not.
void check_masked_losses(const Graph& graph, Problems& problems);

}  // namespace mw
