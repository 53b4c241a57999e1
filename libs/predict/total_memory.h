// Memory of all ranks of a plan together, where they are threads of one machine.
#pragma once

#include <algorithm>
#include <cstdint>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

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
