// How a model's layers are parted among the virtual stages of a pipeline so that no stage takes
// much longer than the others. The ends of a model (an embedding before the first layer, a head and
// a loss behind the last) cost as well, and lie on the first and the last virtual stage, which get
// fewer layers for that: with a large vocabulary a head outweighs several of them.
#pragma once

#include <cstddef>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/op.h"

namespace mw {

// What layers and ends cost, in any unit.
struct LayerCosts {
  std::vector<double> layers;  // of each, in model order
  double first = 0;            // of what lies before the first layer
  double last = 0;             // and behind the last one
};

// Seconds on a nominal device, by the FLOPs and the bytes that are declared: the longer of both.
double nominal_seconds(const Cost& cost);

// Seconds of one sequence's forward and backward, by the FLOPs and bytes that ops declare
// (OpType::cost), on a nominal device that no strategy shares: the same on every machine, and for
// every batch and precision. What depends on data alone, and is computed wherever it is needed,
// counts with none.
LayerCosts declared_costs(const Graph& graph);

// The cost of each stage: of the virtual stages that lie on it. `layers`: of each virtual stage;
// `stage_of`: the stage of each.
std::vector<double> stage_costs(const LayerCosts& costs, const std::vector<int>& layers,
                                const std::vector<int>& stage_of);

// Parts the layers as evenly as can be, the larger parts first. Where there are fewer layers than
// virtual stages, the last virtual stage has none; where there are two fewer, the first has none
// either.
std::vector<int> even_layers(int layers, int vstages);

// Whether the virtual stage may give one of its layers away: all but the first and the last keep
// one.
bool can_give(const std::vector<int>& layers, std::size_t vstage);

// Moves a layer from one stage to another: from the virtual stage of `from` that has most layers to
// that of `to` that has least. Returns nothing where `from` has no layer to give.
std::vector<int> with_move(std::vector<int> layers, const std::vector<int>& stage_of, int from,
                           int to);

// The layers of each virtual stage. Begins with even_layers, and moves one layer at a time from the
// stage that costs most to another as long as the highest cost falls, or, where it stays, the sum
// of squares. No virtual stage but the first and the last is left without a layer. There must be at
// least as many layers as there are virtual stages beside the first and the last.
std::vector<int> balance_layers(const LayerCosts& costs, const std::vector<int>& stage_of);

}  // namespace mw
