// One segment of one microbatch in memory: its footprints, played one after the other.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"

namespace mw {

// What a microbatch holds between two of its segments: who holds which storage.
struct LiveSet {
  struct Storage {
    std::int64_t bytes = 0;
    int users = 0;
    Category category = Category::activations;
  };
  std::vector<Storage> storages;
  std::vector<int> slots;                      // -1: none
  std::vector<std::pair<Holder, int>> others;  // that are no slots: few at a time
};

// Bytes beside what lay there before.
struct Level {
  std::int64_t activations = 0, buffers = 0, host = 0;
};
struct Effect {
  Level after, highest;
  std::int64_t highest_sum = 0;   // of activations and buffers
  bool measured = true;           // every op's scratch was tried on this machine, none estimated
  int history = 0, step = 0;      // what is there then, of the microbatch and of the step
  std::vector<Level> after_each;  // instruction, where it was asked for
};

// Runs `segment` with what the microbatch holds, which it brings up to date. `history` and `step`
// are left alone. Without `highest`, only what it leaves is worked out. `each`: after_each too.
Effect walk(const RankView& rank, LiveSet& held, const Segment& segment, bool highest = true,
            bool each = false);

}  // namespace mw
