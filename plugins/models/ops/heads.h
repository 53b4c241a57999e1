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

// Repeats the heads of k (batch, keys, key heads, width), one for each query head. Copies if
// several key heads each serve several, or the map is not regular: kernels want a fixed distance
// between heads.
at::Tensor spread(const at::Tensor& k, const HeadMap& map);
bool copies(const HeadMap& map);

// The adjoint of spread(): sums gradients over the query heads of each key head, and delivers the
// sum as the gradient of an input of `keys` keys, of which `gradient` has the first.
void fold(OpCall& call, std::size_t input, const at::Tensor& gradient, const HeadMap& map,
          std::int64_t keys);

// Bytes that folding the gradient of keys, then that of values, holds beside the op's own
// gradients. `spread_*`: bytes before the fold; `kept_v`: of the values' own gradient. `whole`: the
// gradients are of all keys.
std::int64_t fold_workspace(const HeadMap& map, std::int64_t spread_k, std::int64_t spread_v,
                            std::int64_t kept_v, bool whole);

}  // namespace mw::kernel
