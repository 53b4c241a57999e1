// Loops over rows of numbers where ATen has no fused kernel on a CPU. Each is compiled for several
// instruction sets (isa/), of which the one that ATen uses is taken.
#pragma once

#include <cstdint>

#include "attention.h"

namespace mw::vector {

// Whether a loop overwrites its output or adds to it.
enum class Write : std::uint8_t { over, added };

template <class T>
struct RmsBackward {
  const T *dy, *x, *weight, *rstd;
  T* dx = nullptr;            // null: gradient not wanted
  T* dw = nullptr;            // null: gradient not wanted; else it is added to
  Write write = Write::over;  // how dx is written
  // distance between rows of dy, x and dx, which may be some columns of wider ones
  std::int64_t stride = 0;
};

template <class T>
struct SwiGluBackward {
  const T *dy, *gate, *up;
  const T* weights;  // a weight for each row; null: no weights
  T *dgate, *dup;    // may share memory with gate and up; null: not wanted
  T* dweights;       // null: gradient not wanted
  Write write_gate = Write::over, write_up = Write::over, write_weights = Write::over;
};

// Heads of one row of a sequence: `heads` runs of `width` numbers each.
template <class T>
struct Heads {
  const T* x;
  T* y;  // may be the same memory as x
  std::int64_t heads, width;
  std::int64_t x_stride, y_stride;  // distance from one head to the next
  bool halves = true;  // a pair has one element of each half of a head; false: neighbours
  T sign = 1;          // -1: the inverse rotation
  Write write = Write::over;
};

// The loops for numbers of type T, compiled for one instruction set. Matrices without a stride are
// contiguous, `rows` by `columns`.
template <class T>
struct Loops {
  // y = x rstd weight, with rstd = 1 / sqrt(mean of x squared + eps) for each row.
  void (*rms_forward)(T* y, T* rstd, const T* x, const T* weight, std::int64_t rows,
                      std::int64_t columns, T eps);
  void (*rms_backward)(const RmsBackward<T>& b, std::int64_t rows, std::int64_t columns);
  // y = silu(gate) up, times a weight for each row where there are any.
  void (*swiglu_forward)(T* y, const T* gate, const T* up, const T* weights, std::int64_t rows,
                         std::int64_t columns);
  void (*swiglu_backward)(const SwiGluBackward<T>& b, std::int64_t rows, std::int64_t columns);
  // y = x cosine + sign swapped(x) sine, of the heads of one row.
  void (*rotate)(const Heads<T>& h, const T* cosine, const T* sine);
  // The sum of exp(x - max) for each row.
  void (*exp_sum)(T* sum, const T* x, const T* max, std::int64_t rows, std::int64_t columns);
  // y = factor exp(x - max), or that is added to y. y may be x.
  void (*exp_scaled)(T* y, const T* x, const T* max, const T* factor, std::int64_t rows,
                     std::int64_t columns, Write write);
  // Attention of one head.
  void (*attend)(const Attention<T>& a);
  void (*attend_backward)(const Attention<T>& a);
};

// The loops for the instruction set that ATen uses here. T is float or double.
template <class T>
const Loops<T>& loops();

}  // namespace mw::vector
