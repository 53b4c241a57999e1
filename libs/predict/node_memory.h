// Host memory of a plan's nodes: ranks that are adjacent share that of a node.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

class NodeMemory {
 public:
  // The ranks of this class of the program each have this forecast.
  void add(const Program& program, const RankClass& kind, const MemoryForecast& memory);
  // Bytes of the node that needs most, where so many ranks are on one. Each rank's are its highest,
  // as if all had them at one time.
  std::int64_t most(const Plan& plan, int ranks_of_node) const;

 private:
  struct Stage {
    std::map<Coordinates, std::int64_t> bytes;  // of each class, by where it begins
    std::vector<std::set<int>> begins;          // of classes, along each atom
    bool alike() const;
  };
  std::map<const Program*, Stage> stages_;
};

}  // namespace mw
