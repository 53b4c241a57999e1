// Makers of the ops that layers without attention are made of, beside those of ops.h: a causal
// convolution, a linear recurrence, and dims seen as other dims.
#pragma once

#include <cstdint>

#include "meshwright/ops.h"

namespace mw {

// inputs: x (batch, seq, channels...), weight (channels..., 1, kernel) [, bias (channels...)] ->
// (batch, seq, channels...): a convolution of each channel along seq, in which a token sees itself
// and the kernel - 1 tokens before it. Weights may lack the 1. A rank needs the 1 and the kernel
// whole, and seq whole unless the op is computed in parts of it (OpType::in_parts).
OpTypePtr conv();

// `chunk`: tokens whose products are made at a time. `delta`: the state forgets what it knows of a
// key before it learns the key's value.
struct ScanOptions {
  std::int64_t chunk = 64;
  bool delta = false;
  friend bool operator==(const ScanOptions&, const ScanOptions&) = default;
};
// inputs: q, k (batch, seq, groups, state), v (batch, seq, heads, width), decay (batch, seq, heads)
// [, rate (batch, seq, heads)] -> (batch, seq, heads, width): a linear recurrence whose state h is
// a matrix (state, width) of each head [Dao and Gu 2024, "Transformers are SSMs", section 6]:
//   h_t = exp(decay_t) h_{t-1} + k_t v_t^T,  y_t = q_t h_t
// `delta` [Yang et al. 2024, "Gated Delta Networks", section 3.3], with a rate b for each head:
//   h_t = exp(decay_t) (I - b_t k_t k_t^T) h_{t-1} + b_t k_t v_t^T
// A group serves equally many heads, as kv_heads serve heads. Needs seq, state and width whole;
// groups follow heads.
OpTypePtr scan(const ScanOptions& options = {});

// inputs: x (..., from...) (linear) -> (..., to...): x's last `from` dims become `to` other dims,
// and the elements keep their order. Only the first dim of `from` and of `to` may be cut; where
// just one of the two is cut, the output or the gradient is a term of a sum.
OpTypePtr reshaped(std::int64_t from, std::int64_t to);

}  // namespace mw
