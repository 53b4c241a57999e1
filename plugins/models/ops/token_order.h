// Sorts tokens by their places in the sequence, and undoes that, for ops that go through a sequence
// from its first token to its last. A strategy may have given the tokens another order.
#pragma once

#include <ATen/ATen.h>

#include "kernel.h"

namespace mw::kernel {

class TokenOrder {
 public:
  // `seq`: the whole dim on this rank.
  TokenOrder(const LocalDim& seq, const at::Tensor& like) {
    if (seq.runs.size() <= 1) return;
    places_ = places_of(seq, like);
    sorts_ = places_.argsort();
  }
  // Tensors of (batch, seq, ...).
  at::Tensor sorted(const at::Tensor& tokens) const {
    return sorts_.defined() ? tokens.index_select(1, sorts_) : tokens;
  }
  at::Tensor as_they_lay(const at::Tensor& sorted) const {
    return places_.defined() ? sorted.index_select(1, places_) : sorted;
  }

 private:
  at::Tensor places_, sorts_;
};

}  // namespace mw::kernel
