#include "model/ops/blocks.h"

#include <algorithm>

namespace mw::kernel {
namespace {

std::int64_t end(const Range& range) {
  return range.offset + range.size;
}

// Tokens that lie together and are together in the sequence too.
struct Run {
  Range tokens;           // of the sequence
  std::int64_t lies = 0;  // where the first of them lies
  Range here(std::int64_t from, std::int64_t to) const {
    return {lies + from - tokens.offset, to - from};
  }
};

std::vector<Run> runs_of(const LocalDim& dim) {
  if (dim.runs.empty()) return {{{dim.offset, dim.size}, 0}};
  std::vector<Run> runs;
  std::int64_t lies = 0;
  for (const Range& tokens : dim.runs) {
    runs.push_back({tokens, lies});
    lies += tokens.size;
  }
  return runs;
}

// Appends a block that is seen whole; the last one grows where it can.
void add(std::vector<Block>& blocks, const Block& block) {
  if (!blocks.empty() && !blocks.back().causal) {
    Block& last = blocks.back();
    const auto same = [](const Range& a, const Range& b) {
      return a.offset == b.offset && a.size == b.size;
    };
    if (same(last.queries, block.queries) && end(last.keys) == block.keys.offset) {
      last.keys.size += block.keys.size;
      return;
    }
    if (same(last.keys, block.keys) && end(last.queries) == block.queries.offset) {
      last.queries.size += block.queries.size;
      return;
    }
  }
  blocks.push_back(block);
}

}  // namespace

std::vector<Block> causal_blocks(const LocalDim& queries, const LocalDim& keys) {
  std::vector<Block> causal, whole;
  const std::vector<Run> key_runs = runs_of(keys);
  for (const Run& q : runs_of(queries)) {
    for (const Run& k : key_runs) {
      const std::int64_t before = std::min(end(k.tokens), q.tokens.offset);
      if (before > k.tokens.offset) {
        add(whole, {{q.lies, q.tokens.size}, k.here(k.tokens.offset, before), false});
      }
      const std::int64_t from = std::max(k.tokens.offset, q.tokens.offset);
      const std::int64_t to = std::min(end(k.tokens), end(q.tokens));
      if (from >= to) continue;
      causal.push_back({q.here(from, to), k.here(from, to), true});
      if (to < end(q.tokens)) add(whole, {q.here(to, end(q.tokens)), k.here(from, to), false});
    }
  }
  causal.insert(causal.end(), whole.begin(), whole.end());
  return causal;
}

}  // namespace mw::kernel
