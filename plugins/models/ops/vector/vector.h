// Loops over rows of numbers where ATen has no fused kernel on a CPU. Each is compiled for several
// instruction sets (isa/), of which the one that ATen uses is taken.
#pragma once

#include <cstdint>

#include "attention.h"

namespace mw::vector {

// How the output of a loop is written.
enum class Write : std::uint8_t { over, added };

template <class T>
struct RmsBackward {
  const T *dy, *x, *weight, *rstd;
  T* dx = nullptr;            // null: not wanted
  T* dw = nullptr;            // null: not wanted; else added to
  Write write = Write::over;  // of dx
  std::int64_t stride = 0;    // from row to row of dy, x and dx: their columns may be some of all
};

template <class T>
struct SwiGluBackward {
  const T *dy, *gate, *up;
  const T* weights;  // one for each row; null: none
  T *dgate, *dup;    // may lie on gate and up; null: not wanted
  T* dweights;       // null: not wanted
  Write write_gate = Write::over, write_up = Write::over, write_weights = Write::over;
};

// Heads of one row of a sequence: `heads` runs of `width` numbers each.
template <class T>
struct Heads {
  const T* x;
  T* y;  // may be x
  std::int64_t heads, width;
  std::int64_t x_stride, y_stride;  // from head to head
  bool halves = true;               // the pairs are halves of a head, else neighbours
  T sign = 1;                       // -1: turns back
  Write write = Write::over;
};

// One instruction set's loops for numbers of type T. Matrices without a stride are contiguous,
// `rows` by `columns`.
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
  // y = factor exp(x - max), or is added to. y may be x.
  void (*exp_scaled)(T* y, const T* x, const T* max, const T* factor, std::int64_t rows,
                     std::int64_t columns, Write write);
  // Attention of one head.
  void (*attend)(const Attention<T>& a);
  void (*attend_backward)(const Attention<T>& a);
};

// Those of the instruction set that ATen uses here. T is float or double.
template <class T>
const Loops<T>& loops();

}  // namespace mw::vector
