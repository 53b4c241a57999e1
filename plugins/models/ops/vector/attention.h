// Arguments and buffer sizes of the attention loops, which compute one head of one sequence at a
// time, in blocks of queries. Functions that the loops call are always inlined: a copy would be
// emitted with the instructions of one instruction set, and other code might get to call it.
#pragma once

#include <cstdint>

namespace mw::vector {

// Numbers in a cache line. Operands are packed in rows of whole cache lines, whatever the
// instruction set.
template <class T>
constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));

template <class T>
[[gnu::always_inline]] constexpr std::int64_t whole_lines(std::int64_t width) {
  return (width + line<T> - 1) / line<T> * line<T>;
}

// Rows of numbers in memory; `row`: the numbers from the begin of a row to that of the next.
template <class T>
struct Rows {
  T* at = nullptr;
  std::int64_t row = 0;
};

template <class T>
struct Attention {
  Rows<T> q, k, v;  // rows of q and k have `width` numbers, those of v `value_width`
  std::int64_t queries = 0, keys = 0, width = 0, value_width = 0;
  // Query i sees the keys j with i + from <= j < i + to that there are, at least one.
  std::int64_t from = 0, to = 0;
  T scale = 1;
  // Forward writes both, backward reads them. lse: for each query the log of the sum of
  // exp(scores).
  Rows<T> out;
  T* lse = nullptr;
  Rows<T> dout, dq, dk, dv;  // for backward: the gradients
  T* buffer = nullptr;       // scratch of attention_room() numbers
};

// The number of queries in a block: all, or as many as keep their scores in the second-level cache,
// a multiple of the rows in a tile of a product.
constexpr std::int64_t most_queries = 48;
template <class T>
[[gnu::always_inline]] constexpr std::int64_t block_queries(const Attention<T>& a) {
  constexpr std::int64_t scores = 1 << 16, rows = 6, least = 12;
  const std::int64_t fit = a.keys > 0 ? scores / a.keys / rows * rows : most_queries;
  const std::int64_t block = fit < least ? least : fit > most_queries ? most_queries : fit;
  return block < a.queries ? block : a.queries;
}

// The range of keys that some query of a block sees, widened to whole cache lines.
template <class T>
struct Seen {
  std::int64_t first, end;
  [[gnu::always_inline]] Seen(const Attention<T>& a, std::int64_t query, std::int64_t count) {
    const std::int64_t begin = query + a.from, last = query + count - 1 + a.to;
    first = begin > 0 ? begin / line<T> * line<T> : 0;
    end = whole_lines<T>(last < a.keys ? last : a.keys);
  }
  [[gnu::always_inline]] std::int64_t width() const { return end - first; }
};

// How many scores are computed, without those that only fill up cache lines.
template <class T>
std::int64_t scores_of(const Attention<T>& a) {
  const std::int64_t block = block_queries(a);
  std::int64_t scores = 0;
  for (std::int64_t q = 0; q < a.queries; q += block) {
    const std::int64_t count = q + block < a.queries ? block : a.queries - q;
    const std::int64_t begin = q + a.from, end = q + count - 1 + a.to;
    scores += count * ((end < a.keys ? end : a.keys) - (begin > 0 ? begin : 0));
  }
  return scores;
}

// How many numbers of scratch forward or backward of a head needs.
template <class T>
std::int64_t attention_room(const Attention<T>& a, bool backward) {
  const std::int64_t keys = whole_lines<T>(a.keys), wide = whole_lines<T>(a.width),
                     values = whole_lines<T>(a.value_width), block = block_queries(a);
  if (!backward) return a.width * keys + a.keys * values + block * (keys + values);
  return (a.width + a.value_width) * keys + a.keys * (2 * wide + values) +
         block * (2 * keys + 2 * wide + values);
}

}  // namespace mw::vector
