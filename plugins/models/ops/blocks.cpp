// Cuts causal attention between a rank's queries and the keys that are present into blocks that a
// kernel computes whole; blocks that no query may see are left out.
#include "blocks.h"

#include <algorithm>

namespace mw::kernel {
namespace {

std::int64_t end(const Range& range) {
  return range.offset + range.size;
}

// Tokens that are adjacent in memory and in the sequence.
struct Run {
  Range tokens;            // the places of the tokens in the sequence
  std::int64_t lies = 0;   // place of the first token in memory
  std::int64_t start = 0;  // place in the sequence of the first token that these may see
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

constexpr Sight same{Sight::Kind::same, 0};

// Appends a block that is seen whole, or extends the last such block if they adjoin.
void add(std::vector<Block>& blocks, const Block& block) {
  if (!blocks.empty() && blocks.back().sight.kind == Sight::Kind::all) {
    Block& last = blocks.back();
    const auto equal = [](const Range& a, const Range& b) {
      return a.offset == b.offset && a.size == b.size;
    };
    if (equal(last.queries, block.queries) && end(last.keys) == block.keys.offset) {
      last.keys.size += block.keys.size;
      return;
    }
    if (equal(last.keys, block.keys) && end(last.queries) == block.queries.offset) {
      last.queries.size += block.queries.size;
      return;
    }
  }
  blocks.push_back(block);
}

// Queries in a tile where attention has a window: few enough that a block computes little in vain.
constexpr std::int64_t tile = 512;

// The queries in tiles, each of one document.
std::vector<Run> tiles_of(const LocalDim& queries, std::int64_t window,
                          const std::vector<std::int64_t>& documents) {
  std::vector<Run> runs = runs_of(queries), tiles;
  if (window == 0 && documents.empty()) return runs;
  for (const Run& run : runs) {
    auto next = std::upper_bound(documents.begin(), documents.end(), run.tokens.offset);
    for (std::int64_t at = run.tokens.offset, size = 0; at < end(run.tokens); at += size) {
      if (next != documents.end() && *next == at) ++next;
      size = end(run.tokens) - at;
      if (window > 0) size = std::min({size, tile, window});
      if (next != documents.end()) size = std::min(size, *next - at);
      tiles.push_back({{at, size},
                       run.lies + at - run.tokens.offset,
                       next == documents.begin() ? 0 : *std::prev(next)});
    }
  }
  return tiles;
}

}  // namespace

std::vector<Block> causal_blocks(const LocalDim& queries, const LocalDim& keys, std::int64_t window,
                                 const std::vector<std::int64_t>& documents) {
  std::vector<Block> causal, whole;
  const std::vector<Run> key_runs = runs_of(keys);
  for (const Run& q : tiles_of(queries, window, documents)) {
    for (const Run& k : key_runs) {
      // Keys before the tile: all its queries see those from `seen` on, fewer and fewer those
      // before.
      const std::int64_t first = std::max(k.tokens.offset, q.start),
                         before = std::min(end(k.tokens), q.tokens.offset);
      const std::int64_t seen = window == 0 ? first : std::max(first, end(q.tokens) - window);
      if (const std::int64_t upto = std::min(before, seen); window > 0) {
        const std::int64_t from = std::max(first, q.tokens.offset - window + 1);
        // The end of the queries that still see one of these keys.
        const std::int64_t last = std::min(end(q.tokens), upto - 1 + window);
        if (from < upto && q.tokens.offset < last) {
          whole.push_back({q.here(q.tokens.offset, last),
                           k.here(from, upto),
                           {Sight::Kind::band, q.tokens.offset - from - window + 1}});
        }
      }
      if (before > seen) add(whole, {{q.lies, q.tokens.size}, k.here(seen, before), {}});
      const std::int64_t from = std::max(first, q.tokens.offset);
      const std::int64_t to = std::min(end(k.tokens), end(q.tokens));
      if (from >= to) continue;
      causal.push_back({q.here(from, to), k.here(from, to), same});
      if (to < end(q.tokens)) add(whole, {q.here(to, end(q.tokens)), k.here(from, to), {}});
    }
  }
  causal.insert(causal.end(), whole.begin(), whole.end());
  return causal;
}

}  // namespace mw::kernel
