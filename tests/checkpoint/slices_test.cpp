// Slices of tensors: taken apart into boxes that lie where they should, and copied from one cut of
// a tensor into any other.
#include "checkpoint/slices.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <random>

using namespace mw;

namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t elements_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// A tensor each of whose elements is its own index.
at::Tensor counted(const Shape& shape) {
  return at::arange(elements_of(shape), at::kDouble).view(shape);
}

at::Tensor box_of(const at::Tensor& tensor, const Box& box) {
  at::Tensor part = tensor;
  for (std::size_t d = 0; d < box.sizes.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.offsets[d], box.sizes[d]);
  return part;
}

at::Tensor flat_of(const at::Tensor& tensor, const Slice& slice) {
  return box_of(tensor, slice.box).reshape({-1}).narrow(0, slice.begin, slice.count).clone();
}

// `count` slices of a tensor that together are all of it, each element in one: a dim is cut as a
// mix cuts it, and each of the boxes into runs.
std::vector<Slice> cut(const Shape& shape, std::mt19937& random) {
  const auto below = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  };
  std::vector<Box> boxes;
  if (shape.empty()) {
    boxes.push_back(Box::whole(shape));
  } else {
    const auto dim = static_cast<std::size_t>(below(static_cast<std::int64_t>(shape.size())));
    for (std::int64_t at = 0; at < shape[dim];) {
      Box box = Box::whole(shape);
      box.offsets[dim] = at;
      box.sizes[dim] = 1 + below(shape[dim] - at);
      at += box.sizes[dim];
      boxes.push_back(std::move(box));
    }
  }
  std::vector<Slice> slices;
  for (const Box& box : boxes) {
    for (std::int64_t at = 0; at < box.elements();) {
      const std::int64_t count = 1 + below(box.elements() - at);
      slices.push_back({box, at, count});
      at += count;
    }
  }
  return slices;
}

const std::vector<Shape> shapes = {{}, {1}, {7}, {3, 5}, {1, 6}, {6, 1}, {2, 3, 4}, {3, 1, 2, 5}};

}  // namespace

TEST_CASE("the boxes of a slice are its elements, in its order") {
  std::mt19937 random(1);
  for (const Shape& shape : shapes) {
    const at::Tensor tensor = counted(shape);
    for (int round = 0; round < 20; ++round) {
      for (const Slice& slice : cut(shape, random)) {
        const std::vector<BoxAt> boxes = boxes_of(slice);
        CHECK(boxes.size() <= std::max<std::size_t>(1, 2 * shape.size() - 1));
        const at::Tensor flat = flat_of(tensor, slice);
        std::int64_t at = 0;
        for (const BoxAt& part : boxes) {
          REQUIRE(part.at == at);
          CHECK(at::equal(flat.narrow(0, at, part.box.elements()),
                          box_of(tensor, part.box).reshape({-1})));
          at += part.box.elements();
        }
        CHECK(at == slice.count);
      }
    }
  }
}

TEST_CASE("a slice of no elements has no boxes") {
  CHECK(boxes_of({Box::whole({3, 4}), 5, 0}).empty());
  CHECK(boxes_of({Box::whole({0, 4}), 0, 0}).empty());
}

TEST_CASE("whole boxes stay whole") {
  const Slice whole{{{1, 2}, {2, 3}}, 0, 6};
  CHECK(whole.is_box());
  CHECK_FALSE(Slice{whole.box, 1, 5}.is_box());
  const std::vector<BoxAt> boxes = boxes_of(whole);
  REQUIRE(boxes.size() == 1);
  CHECK(boxes[0].box.offsets == whole.box.offsets);
  CHECK(boxes[0].box.sizes == whole.box.sizes);
}

TEST_CASE("any cut of a tensor is filled from any other, each element once") {
  std::mt19937 random(2);
  for (const Shape& shape : shapes) {
    const at::Tensor tensor = counted(shape);
    for (int round = 0; round < 20; ++round) {
      const std::vector<Slice> from = cut(shape, random), to = cut(shape, random);
      for (const Slice& target : to) {
        const at::Tensor filled = at::full({target.count}, -1, at::kFloat);
        std::int64_t copied = 0;
        for (const Slice& source : from)
          copied +=
              copy_common(boxes_of(source), flat_of(tensor, source), boxes_of(target), filled);
        CHECK(copied == target.count);
        CHECK(at::equal(filled, flat_of(tensor, target).to(at::kFloat)));
      }
    }
  }
}

TEST_CASE("what two slices do not share stays as it is") {
  const Slice left{{{0, 0}, {4, 2}}, 0, 8}, right{{{0, 2}, {4, 2}}, 0, 8};
  const at::Tensor to = at::full({8}, 7.0);
  CHECK(copy_common(boxes_of(left), at::zeros({8}), boxes_of(right), to) == 0);
  CHECK(at::equal(to, at::full({8}, 7.0)));
}
