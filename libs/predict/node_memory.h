// Memory of several ranks together: of those of a node in host memory, and of all where they are
// threads of one machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "meshwright/engine/memory.h"
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

// Sums the peaks of ranks, each with what it keeps in host memory, which is the same memory then.
class TotalMemory {
 public:
  // The ranks of this class, each of which has this forecast.
  void add(const RankClass& kind, const MemoryForecast& memory) {
    bytes_ +=
        static_cast<double>(kind.ranks) * static_cast<double>(memory.peak + memory[Category::host]);
  }
  // At most 2^62: up to 2^24 ranks may hold more than 64 bits count.
  std::int64_t bytes() const { return static_cast<std::int64_t>(std::min(bytes_, 0x1p62)); }

 private:
  double bytes_ = 0;
};

}  // namespace mw
