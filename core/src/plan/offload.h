// Activation offload: what forward keeps for backward lies in host memory in between (Ren et al.
// 2021, "ZeRO-Offload", does so with optimizer states; Beaumont et al. 2021, "Efficient
// Combination of Rematerialization and Offloading", with activations).
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/program.h"

namespace mw {

struct OffloadSet {
  std::vector<bool> ops;   // of the graph: those whose backward fetches what it reads
  int layers = 0;          // only in the first layers of each virtual stage; 0: in all
  std::int64_t least = 0;  // bytes of a tensor; smaller ones stay
  int prefetch = 0;        // layers of backward by which a tensor is back ahead of its own
  bool any() const;
};

// Of one microbatch, on the stage's first rank.
struct Offloaded {
  int tensors = 0;
  std::int64_t bytes = 0;
};

// Each tensor that a virtual stage's forward makes or receives, and that the backward of an op of
// the set reads (or what recompute makes again for it): copied to the host after forward's last use
// (Code::copy), and back once in each of "backward", "dgrad" and "wgrad" that reads it, as the
// layer of its first reader begins there, or `prefetch` layers earlier. Lifetimes release the rest.
// Parameters, their views, data and what another virtual stage uses too stay. To be called after
// recompute, before buckets, passes and completion.
Offloaded offload_activations(Program& program, const OffloadSet& set);

}  // namespace mw
