// What of a tensor somebody keeps: a part of it, by global indices, whatever the mix that cut it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace mw {

// A range of each dim of a tensor.
struct Box {
  std::vector<std::int64_t> offsets, sizes;

  std::int64_t elements() const;
  static Box whole(const std::vector<std::int64_t>& shape);
};

// Elements [begin, begin + count) of a box, row by row: a rank's cut of a parameter, or what lies
// of that in the rank's shard of a flat tensor.
struct Slice {
  Box box;
  std::int64_t begin = 0, count = 0;

  bool is_box() const { return begin == 0 && count == box.elements(); }
};

// A box of a slice, whose elements lie one after the other in it, from `at` on.
struct BoxAt {
  Box box;
  std::int64_t at = 0;
};

// The slice in boxes, in its own order: at most 2n - 1 where the tensor has n dims.
std::vector<BoxAt> boxes_of(const Slice& slice);

// Copies the elements that both have, from one flat tensor to the other, converting to the dtype
// and the device of `to`. Returns how many.
std::int64_t copy_common(const std::vector<BoxAt>& from, const at::Tensor& from_flat,
                         const std::vector<BoxAt>& to, const at::Tensor& to_flat);

}  // namespace mw
