// Splits slices of tensors into boxes, and copies the elements that two lists of boxes have in
// common.
#include "checkpoint/slices.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace mw {
namespace {

std::int64_t product(const std::vector<std::int64_t>& sizes, std::size_t from = 0) {
  return std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(from), sizes.end(),
                         std::int64_t{1}, std::multiplies<>());
}

class Splitter {
 public:
  explicit Splitter(const Slice& slice) : box_(slice.box), row_(box_.offsets) {
    add(0, slice.begin, slice.begin + slice.count);
  }
  std::vector<BoxAt> boxes;

 private:
  // Adds boxes for elements [begin, end) of the part in which indices 0 to dim - 1 are those of
  // row_.
  void add(std::size_t dim, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    if (dim == box_.sizes.size()) {
      emit(dim, 0, 0);
      return;
    }
    const std::int64_t inner = product(box_.sizes, dim + 1);
    const auto inside = [&](std::int64_t row, std::int64_t from, std::int64_t to) {
      row_[dim] = box_.offsets[dim] + row;
      add(dim + 1, from, to);
      row_[dim] = box_.offsets[dim];
    };
    std::int64_t first = begin / inner;
    const std::int64_t last = end / inner, head = begin % inner, tail = end % inner;
    if (head > 0 && first == last) {
      inside(first, head, tail);
      return;
    }
    if (head > 0) inside(first++, head, inner);
    if (first < last) emit(dim, first, last - first);
    if (tail > 0) inside(last, 0, tail);
  }

  void emit(std::size_t dim, std::int64_t first, std::int64_t rows) {
    BoxAt part{{row_, box_.sizes}, at_};
    for (std::size_t d = 0; d < dim; ++d) part.box.sizes[d] = 1;
    if (dim < box_.sizes.size()) {
      part.box.offsets[dim] += first;
      part.box.sizes[dim] = rows;
    }
    at_ += part.box.elements();
    boxes.push_back(std::move(part));
  }

  const Box& box_;
  std::vector<std::int64_t> row_;
  std::int64_t at_ = 0;
};

at::Tensor part_of(const at::Tensor& flat, const BoxAt& of, const Box& common) {
  at::Tensor part = flat.narrow(0, of.at, of.box.elements()).view(of.box.sizes);
  for (std::size_t d = 0; d < common.sizes.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), common.offsets[d] - of.box.offsets[d],
                       common.sizes[d]);
  return part;
}

}  // namespace

std::int64_t Box::elements() const {
  return product(sizes);
}

Box Box::whole(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

std::vector<BoxAt> boxes_of(const Slice& slice) {
  return Splitter(slice).boxes;
}

std::int64_t copy_common(const std::vector<BoxAt>& from, const at::Tensor& from_flat,
                         const std::vector<BoxAt>& to, const at::Tensor& to_flat) {
  std::int64_t copied = 0;
  for (const BoxAt& target : to) {
    for (const BoxAt& source : from) {
      Box common = target.box;
      bool any = true;
      for (std::size_t d = 0; d < common.sizes.size() && any; ++d) {
        const std::int64_t begin = std::max(target.box.offsets[d], source.box.offsets[d]);
        const std::int64_t end = std::min(target.box.offsets[d] + target.box.sizes[d],
                                          source.box.offsets[d] + source.box.sizes[d]);
        any = begin < end;
        common.offsets[d] = begin;
        common.sizes[d] = end - begin;
      }
      if (!any) continue;
      part_of(to_flat, target, common).copy_(part_of(from_flat, source, common));
      copied += common.elements();
    }
  }
  return copied;
}

}  // namespace mw
