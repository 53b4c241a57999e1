// Blocks of causal attention over parts of a sequence: each query meets each key that it
// may see once, and no other.
#include "plugins/models/ops/blocks.h"

#include <catch2/catch.hpp>

#include <map>

using namespace mw;
using kernel::Block;
using kernel::Sight;

namespace {

LocalDim local(const char* name, std::vector<Range> runs) {
  LocalDim dim{name, 0, 0, 64, std::move(runs)};
  for (const Range& run : dim.runs) dim.size += run.size;
  return dim;
}

std::vector<std::int64_t> tokens(const LocalDim& dim) {
  std::vector<std::int64_t> list;
  for (const Range& run : dim.runs) {
    for (std::int64_t i = 0; i < run.size; ++i) list.push_back(run.offset + i);
  }
  return list;
}

void check(const LocalDim& queries, const LocalDim& keys, std::int64_t window = 0) {
  const std::vector<std::int64_t> q = tokens(queries), k = tokens(keys);
  std::map<std::pair<std::int64_t, std::int64_t>, int> met;
  for (const Block& block : kernel::causal_blocks(queries, keys, window)) {
    if (block.sight.causal()) REQUIRE(block.queries.size == block.keys.size);
    for (std::int64_t i = 0; i < block.queries.size; ++i) {
      bool any = false;
      for (std::int64_t j = 0; j < block.keys.size; ++j) {
        if (block.sight.causal() && j > i) continue;
        if (block.sight.kind == Sight::Kind::band && j - i < block.sight.diagonal) continue;
        ++met[{block.queries.offset + i, block.keys.offset + j}];
        any = true;
      }
      REQUIRE(any);  // else its log-sum-exp is that of nothing
    }
  }
  for (std::size_t i = 0; i < q.size(); ++i) {
    for (std::size_t j = 0; j < k.size(); ++j) {
      const auto pair = std::pair<std::int64_t, std::int64_t>(i, j);
      const int times = met.count(pair) > 0 ? met.at(pair) : 0;
      INFO("query " << q[i] << ", key " << k[j]);
      const bool sees = k[j] <= q[i] && (window == 0 || k[j] > q[i] - window);
      REQUIRE(times == (sees ? 1 : 0));
    }
  }
}

// The r-th rank's two parts of 64 tokens.
LocalDim zigzag(const char* name, int ways, int r) {
  const std::int64_t part = 64 / (2 * ways);
  return local(name, {{r * part, part}, {(2 * ways - 1 - r) * part, part}});
}

std::size_t count(const LocalDim& queries, const LocalDim& keys) {
  return kernel::causal_blocks(queries, keys).size();
}

}  // namespace

TEST_CASE("causal blocks cover what queries see, once") {
  const std::vector<LocalDim> parts{
      local("x", {{0, 64}}),          local("x", {{0, 16}}),
      local("x", {{16, 16}}),         local("x", {{48, 16}}),
      local("x", {{0, 8}, {56, 8}}),  local("x", {{8, 8}, {48, 8}}),
      local("x", {{40, 8}, {4, 12}}), local("x", {{0, 16}, {48, 16}, {16, 16}, {32, 16}}),
      local("x", {{10, 3}}),          local("x", {{11, 20}, {3, 5}, {40, 1}})};
  for (const LocalDim& queries : parts) {
    for (const LocalDim& keys : parts) {
      for (std::int64_t window : {0, 1, 2, 7, 16, 20, 63, 64, 100}) check(queries, keys, window);
    }
  }
}

TEST_CASE("a run of tokens that has all its keys is one block, what it has before it one more") {
  CHECK(count({"x", 0, 64, 64, {}}, {"y", 0, 64, 64, {}}) == 1);
  CHECK(count({"x", 32, 16, 64, {}}, {"y", 0, 64, 64, {}}) == 2);
  CHECK(count({"x", 0, 16, 64, {}}, {"y", 16, 16, 64, {}}) == 0);
}

TEST_CASE(
    "zigzag: a ring's steps are one block each after the first, of equal size on every rank") {
  const int ways = GENERATE(2, 4, 8);
  for (int r = 0; r < ways; ++r) {
    CHECK(count(zigzag("x", ways, r), zigzag("y", ways, r)) == 3);
    for (int from = 0; from < ways; ++from) {
      if (from == r) continue;
      std::int64_t pairs = 0;
      const auto blocks = kernel::causal_blocks(zigzag("x", ways, r), zigzag("y", ways, from));
      for (const Block& block : blocks) pairs += block.queries.size * block.keys.size;
      CHECK(blocks.size() == 1);
      CHECK(pairs == 2 * (32 / ways) * (32 / ways));
    }
  }
}
