// An op whose derivative torch finds: give the forward computation alone.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "meshwright/op.h"

namespace mw {

// While a RecordGradients lives, torch's autograd records what this thread computes. Kernels, hooks
// and optimizers are called with autograd switched off. Code in them that differentiates by torch
// needs a RecordGradients; AutogradOp makes one itself.
class RecordGradients {
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard dispatch_{
      keys_.included_, keys_.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  at::AutoGradMode mode_{true};
};

// Backward runs compute() again on detached inputs, under autograd, and differentiates the recorded
// graph in the rank's own thread. compute() must not communicate and must not write to its inputs.
// Write kernels by hand (OpType) where running forward twice costs too much.
class AutogradOp : public OpType {
 public:
  // Computes the op's outputs from its inputs. All tensors are this rank's local parts.
  virtual std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                          const std::vector<at::Tensor>& inputs) const = 0;

  // Backward reads every input, and nothing else.
  OpTraits traits(const Op& op) const override;
  void forward(const Op& op, OpCall& call) const final;
  void backward(const Op& op, OpCall& call) const final;
  // A rough cost: one operation per element, and memory traffic for each input and output once.
  // Model FLOPs are 0 (those of matrix products and attention are counted from the dims of their
  // operands). The CPU workspace is left out, so that it is measured. The accelerator workspace is
  // one more copy of the outputs, and in backward of the inputs too. Override cost() where this is
  // far off.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override;
};

// A second base class for an OpType whose backward deliberately is not the derivative of forward,
// such as a rounding that passes its gradient straight through (Bengio et al. 2013,
// arXiv:1308.3432). A plan that uses the op is then not refused for it (`prove.lemma`). `plugins
// test` compares gradients with differences of the loss; it leaves out the parameters whose
// gradients come through such an op, and says so. Every mix must still equal one rank.
//
//   class Rounded final : public mw::OpType, public mw::StraightThrough { … };
class StraightThrough {
 public:
  virtual ~StraightThrough() = default;
};

}  // namespace mw
