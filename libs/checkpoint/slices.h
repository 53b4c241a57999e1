// Parts of a tensor, described by global indices, so that they do not depend on the plan that cut
// the tensor.
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

// Elements [begin, begin + count) of a box, in row-major order: a rank's cut of a parameter, or the
// part of that cut that lies in the rank's shard of a flat tensor.
struct Slice {
  Box box;
  std::int64_t begin = 0, count = 0;

  bool is_box() const { return begin == 0 && count == box.elements(); }
};

// A box within a slice. Its elements lie one after the other in the slice, from element `at` on.
struct BoxAt {
  Box box;
  std::int64_t at = 0;
};

// Splits a slice into boxes, in the slice's order: at most 2n - 1 for a tensor of n dims.
std::vector<BoxAt> boxes_of(const Slice& slice);

// Copies the elements that two lists of boxes have in common from one flat tensor to the other,
// converting to the dtype and the device of `to_flat`. Returns how many were copied.
std::int64_t copy_common(const std::vector<BoxAt>& from, const at::Tensor& from_flat,
                         const std::vector<BoxAt>& to, const at::Tensor& to_flat);

}  // namespace mw
