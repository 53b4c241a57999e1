// One segment of one microbatch in memory: what it takes, keeps and lets go, storage by storage.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sizes/rank_view.h"

namespace mw {

struct HeldStorage {
  std::int64_t bytes = 0;
  int users = 0;
  bool buffer = false, host = false;
};

// What a microbatch holds between two of its segments.
struct Held {
  std::vector<int> storage;  // of each slot; -1: none
  std::vector<HeldStorage> storages;
  std::map<int, std::int64_t> underway;         // pending -> bytes held by the move
  std::map<int, std::int64_t> gathered, whole;  // bucket -> bytes: parameters, gradients
};

// Bytes beside what lay there before.
struct Level {
  std::int64_t activations = 0, buffers = 0, host = 0;
};
struct Effect {
  Level after, highest;
  std::int64_t highest_sum = 0;
  bool measured = true;  // every library call's scratch was tried on this machine
  int history = 0;
};

// Runs `segment` with what the microbatch holds, which it brings up to date. `history` is left alone. Without
// `highest`, only what it leaves is worked out.
Effect walk(const RankView& rank, Held& held, const Segment& segment, bool highest = true);

}  // namespace mw
