// Initial weights depend on seed, name and element alone.
#include <ATen/Parallel.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "graph/init.h"

using namespace mw;

namespace {

Value normal(const char* name, double std = 0.02) {
  Value value;
  value.name = name;
  value.init = {Init::Kind::normal, std};
  return value;
}

at::Tensor whole(const Value& value, std::uint64_t seed, at::IntArrayRef shape,
                 at::ScalarType type = at::kFloat) {
  at::Tensor out = at::empty(shape, type);
  fill(out, value, seed);
  return out;
}

}  // namespace

TEST_CASE("every slice is bit for bit that of the whole") {
  const Value value = normal("layers.0.attention.q.weight");
  const std::vector<std::int64_t> shape{7, 5, 9};
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor all = whole(value, 1, shape, type);
    for (int ways = 1; ways <= 4; ++ways) {
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        for (int other = 0; other < 3; ++other) {
          for (int part = 0; part < ways; ++part) {
            std::vector<Range> ranges{{0, 7}, {0, 5}, {0, 9}};
            ranges[dim] = shard_range(shape[dim], ways, part);
            ranges[other] = shard_range(shape[other], ways, (part + 1) % ways);
            at::Tensor expected = all;
            std::vector<std::int64_t> sizes;
            for (std::size_t d = 0; d < 3; ++d) {
              expected = expected.narrow(d, ranges[d].offset, ranges[d].size);
              sizes.push_back(ranges[d].size);
            }
            at::Tensor out = at::empty(sizes, type);
            fill_slice(out, value, 1, shape, ranges);
            REQUIRE(at::equal(out, expected));
          }
        }
      }
    }
    at::Tensor strided = at::empty({9, 5, 7}, type).permute({2, 1, 0});
    fill(strided, value, 1);
    CHECK(at::equal(strided, all));
  }
}

TEST_CASE("several threads fill a slice with what one does") {
  const Value value = normal("embedding.weight");
  const std::vector<std::int64_t> shape{60, 30, 50};
  const std::vector<Range> ranges{{1, 56}, {3, 25}, {7, 41}};  // a third of them ends within a row
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> made;
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    made.push_back(at::zeros({56, 25, 41}));
    fill_slice(made.back(), value, 1, shape, ranges);
  }
  at::set_num_threads(threads);
  CHECK(at::equal(made[0], made[1]));
}

TEST_CASE("fp32 is fp64, rounded; names and seeds make different tensors") {
  const at::Tensor a = whole(normal("a"), 1, {1000}, at::kDouble);
  CHECK(at::equal(whole(normal("a"), 1, {1000}), a.to(at::kFloat)));
  for (const at::Tensor& other :
       {whole(normal("b"), 1, {1000}, at::kDouble), whole(normal("a"), 2, {1000}, at::kDouble)}) {
    const double together =
        (a * other).sum().item<double>() / (a.norm() * other.norm()).item<double>();
    CHECK(std::abs(together) < 0.15);
  }
}

TEST_CASE("the numbers are normal and independent") {
  const std::int64_t n = 1'000'000;
  const at::Tensor x = whole(normal("x", 1.0), 7, {n}, at::kDouble);
  const double root = std::sqrt(static_cast<double>(n));
  CHECK(std::abs(x.mean().item<double>()) < 4 / root);
  CHECK(std::abs(x.pow(2).mean().item<double>() - 1) < 4 * std::sqrt(2.0) / root);
  CHECK(std::abs(x.pow(4).mean().item<double>() - 3) < 4 * std::sqrt(96.0) / root);
  for (const int lag : {1, 2, 3, 4, 5, 1000}) {
    const double c = (x.slice(0, lag) * x.slice(0, 0, n - lag)).mean().item<double>();
    CHECK(std::abs(c) < 4.5 / root);
  }
  for (const double z : {0.5, 1.0, 2.0, 3.0}) {
    const double p = std::erfc(z / std::sqrt(2.0));
    const double seen = x.abs().gt(z).to(at::kDouble).mean().item<double>();
    CHECK(std::abs(seen - p) < 4.5 * std::sqrt(p * (1 - p)) / root);
  }
}

TEST_CASE("ones and zeros, and nothing at all") {
  Value value = normal("norm");
  value.init.kind = Init::Kind::ones;
  CHECK(whole(value, 0, {3}).eq(1).all().item<bool>());
  value.init.kind = Init::Kind::zeros;
  CHECK(whole(value, 0, {3}).eq(0).all().item<bool>());
  at::Tensor none = at::empty({0, 4});
  CHECK_NOTHROW(fill_slice(none, normal("x"), 0, {3, 4}, {{3, 0}, {0, 4}}));
  at::Tensor out = at::empty({2, 4});
  CHECK_THROWS_AS(fill_slice(out, normal("x"), 0, {3, 4}, {{2, 2}, {0, 4}}), std::invalid_argument);
}
