// An op whose derivative torch finds: give the forward computation alone.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "meshwright/op.h"

namespace mw {

// Backward runs compute() again on detached inputs, recording, and differentiates what it recorded,
// in the rank's own thread. compute() must not communicate and must not write to its inputs. Write
// kernels by hand (OpType) where running forward twice costs too much.
class AutogradOp : public OpType {
 public:
  // Outputs from inputs, all local.
  virtual std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                          const std::vector<at::Tensor>& inputs) const = 0;

  // Backward reads every input, and nothing else.
  OpTraits traits(const Op& op) const override;
  void forward(const Op& op, OpCall& call) const final;
  void backward(const Op& op, OpCall& call) const final;
  // No model flops; as many operations as elements; inputs and outputs moved once; as workspace one
  // more copy of the outputs, and in backward of the inputs too. Override it where that is far off.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override;
};

}  // namespace mw
