// Distributes a model's layers over the virtual stages of a pipeline so that no stage takes much
// longer than the others. The embedding lies on the first virtual stage, head and loss on the last
// one. These stages get fewer layers: with a large vocabulary a head costs as much as several
// layers.
#pragma once

#include <cstddef>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/op.h"

namespace mw {

// The costs of a model's layers and ends, in any unit.
struct LayerCosts {
  std::vector<double> layers;  // cost of each layer, in model order
  double first = 0;            // cost of the ops before the first layer
  double last = 0;             // cost of the ops behind the last layer
};

// Seconds of a cost on a nominal device: the longer of the times for its FLOPs and for its bytes.
double nominal_seconds(const Cost& cost);

// Seconds of one sequence's forward and backward, by the FLOPs and bytes that ops declare
// (OpType::cost), on a nominal device that no strategy shares: the same on every machine, and for
// every batch and precision.
LayerCosts declared_costs(const Graph& graph);

// The cost of each stage, with all its virtual stages. `layers`: number of layers of each virtual
// stage; `stage_of`: the stage of each virtual stage.
std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<int>& layers,
                                const std::vector<int>& stage_of);

// Parts the layers as evenly as can be, the larger parts first. Where there are fewer layers than
// virtual stages, the last virtual stage has none; where there are two fewer, the first has none
// either.
std::vector<int> even_layers(int layers, int vstages);

// Whether a virtual stage may give a layer away: all but the first and the last must keep one.
bool can_give(const std::vector<int>& layers, std::size_t vstage);

// Moves a layer from stage `from` to stage `to`: from the virtual stage of `from` with most layers
// to the virtual stage of `to` with least. Returns an empty list if `from` has no layer to give.
std::vector<int> with_move(std::vector<int> layers, const std::vector<int>& stage_of, int from,
                           int to);

// The layers of each virtual stage. Begins with even_layers, and moves one layer at a time from the
// stage that costs most to another as long as the highest cost falls, or, where it stays, the sum
// of squares. No virtual stage but the first and the last is left without a layer. There must be at
// least as many layers as there are virtual stages beside the first and the last.
std::vector<int> balance_layers(const LayerCosts& costs, const std::vector<int>& stage_of);

}  // namespace mw
