// Finds the virtual stage that computes each op, and the values that cross from stage to stage.
#pragma once

#include <map>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/strategy.h"

namespace mw {

// A value that one virtual stage makes and a later one reads. Its gradient comes back the same way.
struct Crossing {
  int value = -1;
  int from = -1, to = -1;  // virtual stages
};

struct Partition {
  std::vector<int> stage_of;  // by virtual stage: its stage
  // By op; -1: it depends on data alone (rotary tables), and is computed wherever its outputs are
  // needed.
  std::vector<int> vstage_of;
  std::vector<std::vector<int>> ops;       // by virtual stage, in graph order
  std::vector<Crossing> crossings;         // sorted by `from`, then value, then `to`
  std::map<int, std::vector<int>> shared;  // parameters that several stages use -> these stages

  int stages = 1;
  int stage_atom = -1;

  int vstages() const { return static_cast<int>(stage_of.size()); }
};

// Assigns ops to virtual stages. Ops before the first layer go to the first virtual stage, those
// after the last to the last one. Adds problems (plan) for layers that do not add up and for a
// model whose values would cross backwards.
Partition part_layers(const Graph& graph, const Mesh& mesh, const Pipeline& pipeline,
                      Problems& problems);

}  // namespace mw
