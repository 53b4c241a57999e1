// Attention of one head of one sequence (attention.h), a block of queries at a time: scores by
// small matrix products of operands that were packed, softmax over whole rows of them, and the
// weighted sum of the values. Backward makes the probabilities again from the log-sum-exp
// [Dao 2023, "FlashAttention-2", algorithm 2]. loops.h includes this, after what it uses.
#pragma once

#include "attention.h"

#if defined(__AVX512F__)
#define MW_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MW_VECTOR_BYTES 32
#else
#define MW_VECTOR_BYTES 16
#endif

namespace mw::vector::MW_VECTOR_ISA {
namespace {

template <class T>
struct Vector {
  typedef T Type __attribute__((vector_size(MW_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};
template <class T>
using V = typename Vector<T>::Type;
template <class T>
constexpr int64_t lanes = MW_VECTOR_BYTES / sizeof(T);

// Rows of a product that are computed at once, and vectors of each: as many as stay in registers.
constexpr int tile_rows = 6, tile_vectors = MW_VECTOR_BYTES == 64 ? 4 : 2;

// An operand that is read number by number: element (i, k) lies at i * row + k * column.
template <class T>
struct Left {
  const T* at;
  int64_t row, column;
};
template <class T, int rows, int vectors, bool add>
inline void tile(Rows<T> c, Left<T> a, Rows<const T> b, int64_t depth) {
  V<T> sum[rows][vectors];
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v)
      sum[i][v] = add ? *reinterpret_cast<const V<T>*>(c.at + i * c.row + v * lanes<T>) : V<T>{};
  for (int64_t k = 0; k < depth; ++k) {
    V<T> right[vectors];
    for (int v = 0; v < vectors; ++v)
      right[v] = *reinterpret_cast<const V<T>*>(b.at + k * b.row + v * lanes<T>);
    for (int i = 0; i < rows; ++i) {
      const T left = a.at[i * a.row + k * a.column];
      for (int v = 0; v < vectors; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < vectors; ++v)
      *reinterpret_cast<V<T>*>(c.at + i * c.row + v * lanes<T>) = sum[i][v];
}

template <class T, int vectors, bool add>
void columns(Rows<T> c, Left<T> a, Rows<const T> b, int64_t rows, int64_t depth) {
  int64_t i = 0;
  const auto some = [&]<int count>() {
    for (; i + count <= rows; i += count)
      tile<T, count, vectors, add>({c.at + i * c.row, c.row}, {a.at + i * a.row, a.row, a.column},
                                   b, depth);
  };
  some.template operator()<tile_rows>();
  some.template operator()<2>();
  some.template operator()<1>();
}

// c = a b, or c += a b, where c is (rows, width) and the depth is that of the sum. The width, and
// the rows of b and c, are multiples of `line`.
template <class T, bool add>
void product(Rows<T> c, Left<T> a, Rows<const T> b, int64_t rows, int64_t width, int64_t depth) {
  int64_t j = 0;
  const auto some = [&]<int vectors>() {
    for (; j + vectors * lanes<T> <= width; j += vectors * lanes<T>)
      columns<T, vectors, add>({c.at + j, c.row}, a, {b.at + j, b.row}, rows, depth);
  };
  some.template operator()<tile_vectors>();
  if constexpr (tile_vectors > 2) some.template operator()<2>();
  some.template operator()<1>();
}

// Prefetches the row eight rows on: rows of a head lie apart, which the CPU does not foresee.
template <class T>
inline void ahead(const T* row, int64_t stride, int64_t width) {
  for (int64_t j = 0; j < width; j += line<T>) __builtin_prefetch(row + 8 * stride + j);
}

// Copies rows of `width` numbers into rows of whole cache lines, filled up with zeros.
template <class T>
void pack(Rows<T> to, Rows<const T> from, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    T* row = to.at + i * to.row;
    const T* x = from.at + i * from.row;
    ahead(x, from.row, width);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) row[j] = x[j];
    for (int64_t j = width; j < to.row; ++j) row[j] = 0;
  }
}
template <class T>
void pack_turned(Rows<T> to, Rows<const T> from, int64_t rows, int64_t width) {
  constexpr int64_t at_once = 8;  // `line` is a multiple of it
  for (int64_t first = 0; first < to.row; first += at_once)
    for (int64_t j = 0; j < width; ++j) {
      T* row = to.at + j * to.row + first;
      for (int64_t i = 0; i < at_once; ++i)
        row[i] = first + i < rows ? from.at[(first + i) * from.row + j] : T(0);
    }
}

// Reduces a row of whole vectors: `of` maps each number, `both` combines two results.
template <class T, class Of, class Both>
inline T over_row(T* row, int64_t width, T start, Of of, Both both) {
  T some[lanes<T>];
  for (T& each : some) each = start;
  for (int64_t j = 0; j < width; j += lanes<T>) {
#pragma omp simd
    for (int64_t l = 0; l < lanes<T>; ++l) some[l] = both(some[l], of(row[j + l]));
  }
  for (int64_t left = lanes<T> / 2; left > 0; left /= 2)
    for (int64_t l = 0; l < left; ++l) some[l] = both(some[l], some[l + left]);
  return some[0];
}

// The score of a key that the query does not see: so low that it adds nothing to a softmax.
template <class T>
constexpr T unseen = sizeof(T) == sizeof(float) ? T(-1e30f) : T(-1e300);

// Sets to `unseen` the scores of keys that the query does not see. The row begins with key
// `seen.first`.
template <class T>
void hide_unseen(T* row, const Attention<T>& a, const Seen<T>& seen, int64_t query) {
  const int64_t first = query + a.from - seen.first;
  const int64_t last = query + a.to < a.keys ? query + a.to : a.keys;
  for (int64_t j = 0; j < first; ++j) row[j] = unseen<T>;
  for (int64_t j = last - seen.first; j < seen.width(); ++j) row[j] = unseen<T>;
}

// Takes room for rows off the front of the buffer.
template <class T>
Rows<T> room(T*& buffer, int64_t rows, int64_t width) {
  T* const at = buffer;
  buffer += rows * width;
  return {at, width};
}
// Rows to be read: from row `first` on, each from column `column` on.
template <class T>
Rows<const T> from(Rows<T> rows, int64_t first = 0, int64_t column = 0) {
  return {rows.at + first * rows.row + column, rows.row};
}
template <class T>
Left<T> left(Rows<const T> rows) {
  return {rows.at, rows.row, 1};
}
template <class T>
Left<T> turned(Rows<const T> rows) {
  return {rows.at, 1, rows.row};
}

// Copies packed rows to the rows of a head from `first` on.
template <class T>
void unpack(Rows<T> to, int64_t first, Rows<const T> made, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows; ++i) {
    T* const row = to.at + (first + i) * to.row;
    const T* const x = made.at + i * made.row;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) row[j] = x[j];
  }
}

template <class T>
void attend(const Attention<T>& a) {
  const int64_t keys = whole_lines<T>(a.keys), values = whole_lines<T>(a.value_width);
  const int64_t block = block_queries(a);
  T* buffer = a.buffer;
  const Rows<T> k = room(buffer, a.width, keys), v = room(buffer, a.keys, values);
  T* const scores = room(buffer, block, keys).at;
  const Rows<T> made = room(buffer, block, values);
  pack_turned(k, from(a.k), a.keys, a.width);
  pack(v, from(a.v), a.keys, a.value_width);
  for (int64_t q = 0; q < a.queries; q += block) {
    const int64_t rows = q + block < a.queries ? block : a.queries - q;
    const Seen<T> seen(a, q, rows);
    const Rows<T> p{scores, seen.width()};
    T shares[most_queries];
    product<T, false>(p, left(from(a.q, q)), from(k, 0, seen.first), rows, seen.width(), a.width);
    for (int64_t i = 0; i < rows; ++i) {
      T* const row = p.at + i * p.row;
      hide_unseen(row, a, seen, q + i);
      const T largest = over_row<T>(
          row, p.row, unseen<T>, [](T x) { return x; }, [](T x, T y) { return x > y ? x : y; });
      const T sum = over_row<T>(
          row, p.row, T(0), [&](T& x) { return x = exponential((x - largest) * a.scale); },
          [](T x, T y) { return x + y; });
      a.lse[q + i] = largest * a.scale + logarithm(sum);
      shares[i] = T(1) / sum;
    }
    const int64_t depth = (seen.end < a.keys ? seen.end : a.keys) - seen.first;
    product<T, false>(made, left(from(p)), from(v, seen.first), rows, values, depth);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < values; ++j) made.at[i * values + j] *= shares[i];
    unpack(a.out, q, from(made), rows, a.value_width);
  }
}

// The parts of a head's buffer in backward: operands, which are packed, and sums of gradients.
template <class T>
struct Packed {
  Rows<T> k_turned, v_turned, k, dk, dv;     // for all keys
  Rows<T> scores, more_scores, q, dout, dq;  // for a block of queries
  Packed(const Attention<T>& a, int64_t block) {
    const int64_t keys = whole_lines<T>(a.keys), wide = whole_lines<T>(a.width),
                  values = whole_lines<T>(a.value_width);
    T* buffer = a.buffer;
    k_turned = room(buffer, a.width, keys);
    v_turned = room(buffer, a.value_width, keys);
    k = room(buffer, a.keys, wide);
    dk = room(buffer, a.keys, wide);
    dv = room(buffer, a.keys, values);
    scores = room(buffer, block, keys);
    more_scores = room(buffer, block, keys);
    q = room(buffer, block, wide);
    dout = room(buffer, block, values);
    dq = room(buffer, block, wide);
    pack_turned(k_turned, from(a.k), a.keys, a.width);
    pack_turned(v_turned, from(a.v), a.keys, a.value_width);
    pack(k, from(a.k), a.keys, a.width);
    for (int64_t j = 0; j < a.keys * wide; ++j) dk.at[j] = 0;
    for (int64_t j = 0; j < a.keys * values; ++j) dv.at[j] = 0;
  }
};

// Turns scores p of a row into probabilities, and dp, the gradients of the probabilities, into
// those of the scores. `delta`: the dot product of dout and out.
template <class T>
inline void score_gradients(T* p, T* dp, int64_t width, T scale, T lse, T delta) {
#pragma omp simd
  for (int64_t j = 0; j < width; ++j) {
    const T share = exponential(p[j] * scale - lse);
    p[j] = share;
    dp[j] = share * (dp[j] - delta) * scale;
  }
}

template <class T>
void attend_backward(const Attention<T>& a) {
  const int64_t block = block_queries(a);
  const Packed<T> of(a, block);
  for (int64_t q = 0; q < a.queries; q += block) {
    const int64_t rows = q + block < a.queries ? block : a.queries - q;
    const Seen<T> seen(a, q, rows);
    const int64_t depth = (seen.end < a.keys ? seen.end : a.keys) - seen.first;
    const Rows<T> p{of.scores.at, seen.width()}, dp{of.more_scores.at, seen.width()};
    pack(of.q, from(a.q, q), rows, a.width);
    pack(of.dout, from(a.dout, q), rows, a.value_width);
    product<T, false>(p, left(from(of.q)), from(of.k_turned, 0, seen.first), rows, p.row, a.width);
    product<T, false>(dp, left(from(of.dout)), from(of.v_turned, 0, seen.first), rows, p.row,
                      a.value_width);
    for (int64_t i = 0; i < rows; ++i) {
      const T* const out = a.out.at + (q + i) * a.out.row;
      const T* const dout = of.dout.at + i * of.dout.row;
      T delta = 0;
      ahead(out, a.out.row, a.value_width);
#pragma omp simd reduction(+ : delta)
      for (int64_t j = 0; j < a.value_width; ++j) delta += out[j] * dout[j];
      hide_unseen(p.at + i * p.row, a, seen, q + i);
      score_gradients(p.at + i * p.row, dp.at + i * p.row, p.row, a.scale, a.lse[q + i], delta);
    }
    const Rows<T> dk{of.dk.at + seen.first * of.dk.row, of.dk.row};
    const Rows<T> dv{of.dv.at + seen.first * of.dv.row, of.dv.row};
    product<T, false>(of.dq, left(from(dp)), from(of.k, seen.first), rows, of.dq.row, depth);
    product<T, true>(dk, turned(from(dp)), from(of.q), depth, dk.row, rows);
    product<T, true>(dv, turned(from(p)), from(of.dout), depth, dv.row, rows);
    unpack(a.dq, q, from(of.dq), rows, a.width);
  }
  unpack(a.dk, 0, from(of.dk), a.keys, a.width);
  unpack(a.dv, 0, from(of.dv), a.keys, a.value_width);
}

}  // namespace
}  // namespace mw::vector::MW_VECTOR_ISA
