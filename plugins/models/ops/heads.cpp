// Maps a rank's query heads to the key heads that they read, and brings keys, and gradients of
// them, from the one number of heads to the other.
#include "heads.h"

#include <algorithm>
#include <vector>

#include "kernel.h"

namespace mw::kernel {
namespace {

at::Tensor index_of(const HeadMap& map, const at::Tensor& like) {
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < map.heads.size; ++i)
    index.push_back((map.heads.offset + i) / map.group() - map.kv_heads.offset);
  return at::tensor(index, at::kLong).to(like.device(), /*non_blocking=*/true);
}

}  // namespace

HeadMap map_heads(const LocalDim& heads, const LocalDim& kv_heads) {
  HeadMap map;
  map.held = kv_heads.size;
  map.heads = heads;
  map.kv_heads = kv_heads;
  if (heads.size == 0) return map;
  const std::int64_t group = map.group(), last = heads.offset + heads.size - 1;
  map.first = heads.offset / group - kv_heads.offset;
  map.count = last / group - heads.offset / group + 1;
  map.repeat = heads.size / map.count;
  // The rank may hold just a part of the first and of the last group. The map is regular if these
  // are as large as the groups between them.
  const std::int64_t of_first = group - heads.offset % group, of_last = last % group + 1;
  map.regular = map.count == 1 || (of_first == of_last && (map.count == 2 || of_first == group));
  return map;
}

at::Tensor spread(const at::Tensor& k, const HeadMap& map) {
  if (map.identity()) return k;
  if (!map.regular) return k.index_select(2, index_of(map, k));
  at::Tensor picked = part_of(k, 2, map.first, map.count);
  if (map.repeat == 1) return picked;
  const std::int64_t b = k.size(0), t = k.size(1), d = k.size(3);
  if (map.count == 1) return picked.expand({b, t, map.repeat, d});
  return picked.unsqueeze(3)
      .expand({b, t, map.count, map.repeat, d})
      .reshape({b, t, map.count * map.repeat, d});
}

bool copies(const HeadMap& map) {
  return !map.regular || (map.repeat > 1 && map.count > 1);
}

void fold(OpCall& call, std::size_t input, const at::Tensor& gradient, const HeadMap& map,
          std::int64_t keys) {
  const std::int64_t b = gradient.size(0), t = gradient.size(1), d = gradient.size(3);
  if (t == keys && map.identity()) return deliver(call, input, gradient);
  const auto folded = [&] {
    if (map.repeat == 1) return gradient;
    return gradient.reshape({b, t, map.count, map.repeat, d}).sum(3);
  };
  if (t == keys && map.all()) return deliver(call, input, folded());
  Target to = target(call, input, {b, keys, map.held, d}, gradient.options());
  if (!to.add) to.tensor.zero_();
  at::Tensor part = to.tensor.narrow(1, 0, t);
  if (map.regular) {
    part.narrow(2, map.first, map.count).add_(folded());
  } else {
    part.index_add_(2, index_of(map, gradient), gradient);
  }
}

std::int64_t fold_workspace(const HeadMap& map, std::int64_t spread_k, std::int64_t spread_v,
                            std::int64_t kept_v, bool whole) {
  const bool sums = (!map.all() || !whole) && map.regular && map.repeat > 1;
  return std::max({std::int64_t{0},
                   spread_k + spread_v - kept_v + (sums ? spread_k / map.repeat : 0),
                   spread_v + (sums ? spread_v / map.repeat : 0)});
}

}  // namespace mw::kernel
