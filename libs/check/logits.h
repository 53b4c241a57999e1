// The logits of a batch, whatever the mix: to hold a model beside another program that computes it.
#pragma once

#include <ATen/ATen.h>

#include "meshwright/engine/run.h"

namespace mw {

struct Logits {
  at::Tensor tokens;  // int64, (sequences, sequence)
  at::Tensor labels;  // the tokens that each of them is followed by
  at::Tensor logits;  // (sequences, sequence, vocab), fp64 in plans of that, else fp32
  double loss = 0;
};

// Runs the forward part of the plan on the batch of step 0, with the weights of before it. On the
// process that has rank 0; empty on others. Throws Error (run) if a rank fails.
Logits logits_of(const RunSetup& experiment);

}  // namespace mw
