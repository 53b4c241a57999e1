// Maps a rank's query heads to the key heads that they read, where a key head serves several query
// heads and axes cut either or both; repeats keys for each query head, and sums gradients back.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "meshwright/op.h"

namespace mw::kernel {

// Says which of a rank's key heads each of its query heads reads: query head i reads key head
// `first + i / repeat`, one of `count`, if the map is regular; else the key head of its group.
struct HeadMap {
  std::int64_t held = 0;  // key heads on this rank
  std::int64_t first = 0, count = 0, repeat = 1;
  bool regular = true;
  LocalDim heads, kv_heads;
  std::int64_t group() const { return heads.global / kv_heads.global; }
  bool identity() const { return regular && repeat == 1 && first == 0 && count == held; }
  bool all() const { return regular && first == 0 && count == held; }
};

HeadMap map_heads(const LocalDim& heads, const LocalDim& kv_heads);

// One key head for each query head, of k (batch, keys, key heads, width). A copy if a key head
// serves several and there is more than one: kernels want a fixed distance between heads.
at::Tensor spread(const at::Tensor& k, const HeadMap& map);
bool copies(const HeadMap& map);

// The adjoint of spread: sums over the query heads of a key head, and delivers the sum as the
// gradient of an input of so many `keys`, of which `gradient` has the first.
void fold(OpCall& call, std::size_t input, const at::Tensor& gradient, const HeadMap& map,
          std::int64_t keys);

// What folds of gradients of keys, then of values, hold beside the op's own gradients: bytes of
// both before they are folded, and of the values' own. `whole`: gradients are of all keys.
std::int64_t fold_workspace(const HeadMap& map, std::int64_t spread_k, std::int64_t spread_v,
                            std::int64_t kept_v, bool whole);

}  // namespace mw::kernel
