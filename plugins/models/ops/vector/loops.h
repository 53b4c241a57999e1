// The loops of vector.h, compiled for the instruction set of the file that includes this, which
// defines its name as MW_VECTOR_ISA. Plain loops, which the compiler vectorises. No function of the
// standard library is called in them: an inline one would be emitted with this file's instructions,
// and other code might get to call it.
#pragma once

#include <cstdint>

#include "vector.h"

namespace mw::vector::MW_VECTOR_ISA {
namespace {

using std::int64_t;

template <class T>
struct Exponent;
template <>
struct Exponent<float> {
  using Bits = std::int32_t;
  static constexpr int bias = 127, mantissa = 23, terms = 7;
  static constexpr float least = -88, most = 89;
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
};
template <>
struct Exponent<double> {
  using Bits = std::int64_t;
  static constexpr int bias = 1023, mantissa = 52, terms = 13;
  static constexpr double least = -709, most = 710;
  static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
};

// 1 / k!
template <class T>
constexpr T inverse_factorial(int k) {
  double of = 1;
  for (int n = 2; n <= k; ++n) of /= n;
  return static_cast<T>(of);
}
template <class T, int... k>
struct Series {
  static constexpr T terms[] = {inverse_factorial<T>(k)...};
};
template <class T>
using Terms = Series<T, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13>;

// exp(x) = 2^n exp(r) with |r| <= ln 2 / 2, and as many terms of exp(r)'s series as T has digits
// for. Beyond `least` and `most`, the bits of 2^n are those of nought and of infinity. Adding
// `shift` rounds to a whole number.
template <class T>
inline T exponential(T x) {
  using E = Exponent<T>;
  using Bits = typename E::Bits;
  T z = x < E::least ? E::least : x;  // NaN stays NaN
  z = z > E::most ? E::most : z;
  constexpr T shift = T(3) * (Bits{1} << (E::mantissa - 1));
  const T whole = (z * T(1.44269504088896340736) + shift) - shift;
  const auto n = static_cast<std::int32_t>(whole);
  const T r = (z - whole * E::ln2_high) - whole * E::ln2_low;
  T series = Terms<T>::terms[E::terms];
#pragma GCC unroll 16
  for (int k = E::terms - 1; k >= 0; --k) series = series * r + Terms<T>::terms[k];
  const T power = __builtin_bit_cast(T, (static_cast<Bits>(n) + E::bias) << E::mantissa);
  return series * power;
}
inline float logarithm(float x) {
  return __builtin_logf(x);
}
inline double logarithm(double x) {
  return __builtin_log(x);
}

template <class T>
inline T sigmoid(T x) {
  return T(1) / (T(1) + exponential(-x));
}

template <class T>
inline T root(T x) {
  if constexpr (sizeof(T) == sizeof(float)) return __builtin_sqrtf(x);
  return __builtin_sqrt(x);
}

template <class T>
void rms_forward(T* y, T* rstd, const T* x, const T* weight, int64_t rows, int64_t columns, T eps) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; ++j) sum += x[j] * x[j];
    const T scale = T(1) / root(sum / static_cast<T>(columns) + eps);
    rstd[r] = scale;
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) y[j] = x[j] * scale * weight[j];
  }
}

// With t = dy x:   dx = dy weight rstd - x (t weight) rstd^3 / columns,   dw = t^T rstd
template <class T, bool add>
void rms_backward_of(const RmsBackward<T>& b, int64_t rows, int64_t columns) {
  const T *dy = b.dy, *x = b.x, *weight = b.weight;
  T *dx = b.dx, *dw = b.dw;
  for (int64_t r = 0; r < rows; ++r, dy += b.stride, x += b.stride) {
    const T scale = b.rstd[r];
    T sum = 0;
    if (dw != nullptr) {
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < columns; ++j) {
        const T t = dy[j] * x[j];
        sum += t * weight[j];
        dw[j] += t * scale;
      }
    } else {
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < columns; ++j) sum += dy[j] * x[j] * weight[j];
    }
    if (dx == nullptr) continue;
    const T c = -sum * scale * scale * scale / static_cast<T>(columns);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T made = dy[j] * weight[j] * scale + x[j] * c;
      dx[j] = add ? dx[j] + made : made;
    }
    dx += b.stride;
  }
}

template <class T>
void rms_backward(const RmsBackward<T>& b, int64_t rows, int64_t columns) {
  if (b.write == Write::added) return rms_backward_of<T, true>(b, rows, columns);
  rms_backward_of<T, false>(b, rows, columns);
}

template <class T>
void swiglu_forward(T* y, const T* gate, const T* up, const T* weights, int64_t rows,
                    int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, y += columns, gate += columns, up += columns) {
    const T weight = weights != nullptr ? weights[r] : T(1);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) y[j] = gate[j] * sigmoid(gate[j]) * up[j] * weight;
  }
}

// With s = sigmoid(gate), t = dy up:
//   dgate = t weight s (1 + gate (1 - s)),   dup = dy weight gate s,   dweight = sum of t gate s
// `Out` says of each of dgate and dup whether it is left out, written or added to.
enum class Out { none, over, added };

template <class T, Out gate_out, Out up_out>
void swiglu_backward_of(const SwiGluBackward<T>& b, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    const T *dy = b.dy + r * columns, *gate = b.gate + r * columns, *up = b.up + r * columns;
    T* dgate = gate_out == Out::none ? nullptr : b.dgate + r * columns;
    T* dup = up_out == Out::none ? nullptr : b.dup + r * columns;
    const T weight = b.weights != nullptr ? b.weights[r] : T(1);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; ++j) {
      const T g = gate[j], s = sigmoid(g), t = dy[j] * up[j], d = dy[j] * weight;
      sum += t * (g * s);
      [[maybe_unused]] const T of_up = d * (g * s);
      [[maybe_unused]] const T of_gate = t * weight * (s * (T(1) + g * (T(1) - s)));
      if constexpr (up_out != Out::none) dup[j] = up_out == Out::added ? dup[j] + of_up : of_up;
      if constexpr (gate_out != Out::none)
        dgate[j] = gate_out == Out::added ? dgate[j] + of_gate : of_gate;
    }
    if (b.dweights == nullptr) continue;
    b.dweights[r] = b.write_weights == Write::added ? b.dweights[r] + sum : sum;
  }
}

template <class T, Out gate_out>
void swiglu_backward_to(const SwiGluBackward<T>& b, int64_t rows, int64_t columns) {
  if (b.dup == nullptr) return swiglu_backward_of<T, gate_out, Out::none>(b, rows, columns);
  if (b.write_up == Write::added)
    return swiglu_backward_of<T, gate_out, Out::added>(b, rows, columns);
  swiglu_backward_of<T, gate_out, Out::over>(b, rows, columns);
}

template <class T>
void swiglu_backward(const SwiGluBackward<T>& b, int64_t rows, int64_t columns) {
  if (b.dgate == nullptr) return swiglu_backward_to<T, Out::none>(b, rows, columns);
  if (b.write_gate == Write::added) return swiglu_backward_to<T, Out::added>(b, rows, columns);
  swiglu_backward_to<T, Out::over>(b, rows, columns);
}

template <class T, bool add, bool halves>
void rotate_of(const Heads<T>& h, const T* cosine, const T* sine) {
  const int64_t half = h.width / 2, step = halves ? 1 : 2, other = halves ? half : 1;
  const T sign = h.sign;
  for (int64_t k = 0; k < h.heads; ++k) {
    const T* x = h.x + k * h.x_stride;
    T* y = h.y + k * h.y_stride;
#pragma omp simd
    for (int64_t j = 0; j < half; ++j) {
      const int64_t a = j * step, b = a + other;
      const T first = x[a], second = x[b];
      const T to_a = first * cosine[a] + sign * second * sine[a];
      const T to_b = second * cosine[b] + sign * first * sine[b];
      y[a] = add ? y[a] + to_a : to_a;
      y[b] = add ? y[b] + to_b : to_b;
    }
  }
}

template <class T>
void rotate(const Heads<T>& h, const T* cosine, const T* sine) {
  const bool add = h.write == Write::added;
  if (h.halves) {
    add ? rotate_of<T, true, true>(h, cosine, sine) : rotate_of<T, false, true>(h, cosine, sine);
  } else {
    add ? rotate_of<T, true, false>(h, cosine, sine) : rotate_of<T, false, false>(h, cosine, sine);
  }
}

template <class T>
void exp_sum(T* sum, const T* x, const T* max, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    const T largest = max[r];
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < columns; ++j) total += exponential(x[j] - largest);
    sum[r] = total;
  }
}

template <class T>
void exp_scaled(T* y, const T* x, const T* max, const T* factor, int64_t rows, int64_t columns,
                Write write) {
  for (int64_t r = 0; r < rows; ++r, x += columns, y += columns) {
    const T largest = max[r], scale = factor[r];
    if (write == Write::added) {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) y[j] += scale * exponential(x[j] - largest);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < columns; ++j) y[j] = scale * exponential(x[j] - largest);
    }
  }
}

}  // namespace
}  // namespace mw::vector::MW_VECTOR_ISA

#include "attention_loops.h"

namespace mw::vector::MW_VECTOR_ISA {
namespace {

template <class T>
constexpr Loops<T> all{rms_forward<T>,     rms_backward<T>, swiglu_forward<T>,
                       swiglu_backward<T>, rotate<T>,       exp_sum<T>,
                       exp_scaled<T>,      attend<T>,       attend_backward<T>};

}  // namespace

extern const Loops<float> floats;
extern const Loops<double> doubles;
const Loops<float> floats = all<float>;
const Loops<double> doubles = all<double>;

}  // namespace mw::vector::MW_VECTOR_ISA
