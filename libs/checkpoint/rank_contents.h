// What of a program's lasting slots a rank puts into a checkpoint, and where it takes it from one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/slices.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

// A parameter's numbers, or a state of the optimizer for it, as far as a rank keeps it.
struct KeptSlice {
  std::string tensor;               // its name in a checkpoint
  std::vector<std::int64_t> shape;  // of all of it
  Slice slice;                      // never empty
  int slot = -1;                    // the flat slot that has it ...
  std::int64_t first = 0;           // the slice begins at this element
  bool writes = false;              // of the ranks that keep the same, it is the first
};

// In the order of slots and of what lies in them. Numbers are those that the optimizer updates:
// masters where there are such.
std::vector<KeptSlice> kept_slices(const RankView& rank);

// A parameter's place: its shape, and the box of it that the rank computes with or has a shard of.
struct ParameterPlace {
  std::string name;
  std::vector<std::int64_t> shape;
  Box box;
};
ParameterPlace place_of(const RankView& rank, int parameter);

}  // namespace mw
