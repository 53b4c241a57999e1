// Adds up the memory of several ranks: the host memory of a node's ranks, and all memory of ranks
// that are threads of one machine.
#pragma once

#include <algorithm>
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
  // Adds the ranks of a class of the program, each of which has this forecast.
  void add(const Program& program, const RankClass& kind, const MemoryForecast& memory);
  // Bytes of host memory on the node that needs most, with `ranks_of_node` ranks on each node. Each
  // rank counts with its highest, as if all ranks had it at one time.
  std::int64_t most(const Plan& plan, int ranks_of_node) const;

 private:
  struct Stage {
    // Host memory of a rank of each class, by the class's first coordinates.
    std::map<Coordinates, std::int64_t> bytes;
    // First coordinates of the classes, along each atom of the mesh.
    std::vector<std::set<int>> begins;
    bool alike() const;
  };
  std::map<const Program*, Stage> stages_;
};

// Sums the memory of ranks that are threads of one machine: the peak of each, and what it keeps in
// host memory, which is the same memory.
class TotalMemory {
 public:
  // Adds the ranks of a class, each of which has this forecast.
  void add(const RankClass& kind, const MemoryForecast& memory) {
    bytes_ +=
        static_cast<double>(kind.ranks) * static_cast<double>(memory.peak + memory[Category::host]);
  }
  // The sum, at most 2^62: 2^24 ranks may hold more bytes than 64 bits can count.
  std::int64_t bytes() const { return static_cast<std::int64_t>(std::min(bytes_, 0x1p62)); }

 private:
  double bytes_ = 0;
};

}  // namespace mw
