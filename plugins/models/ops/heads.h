// Which key heads a rank's query heads read, where key heads serve several query heads and an axis
// cuts one of both or the two alike; keys brought to one head for each query head, and the adjoint.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "meshwright/op.h"

namespace mw::kernel {

// Which of this rank's key heads its query heads read: query head i reads `first + i / repeat`, of
// `count`, if regular; else that of its own group.
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
