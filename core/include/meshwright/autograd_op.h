// An op whose derivative torch finds: give the forward computation alone.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <vector>

#include "meshwright/op.h"

namespace mw {

// While it lives, torch's autograd records what this thread computes. Kernels, hooks and optimizers
// are called below autograd, where it sees nothing of them: those that differentiate by torch
// themselves need it, AutogradOp has it.
class RecordGradients {
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard dispatch_{
      keys_.included_, keys_.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  at::AutoGradMode mode_{true};
};

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
  // No model flops: those of a matrix product or an attention are counted from the dims of their
  // operands; as many operations as elements; inputs and outputs moved once. The workspace is left
  // out, so that it is measured; on an accelerator it is one more copy of the outputs, and in
  // backward of the inputs too. Override it where that is far off.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override;
};

// A base for an OpType, beside its own: what backward gives is not the derivative of forward, on
// purpose, as where a rounding passes its gradient straight through (Bengio et al. 2013,
// arXiv:1308.3432). A plan that uses the op is then not refused for it (`prove.lemma`), and
// `plugins test` leaves out of its comparison with differences of the loss those parameters whose
// gradients come through such an op, and says so. Nothing else asks: every mix must still equal one
// rank.
//
//   class Rounded final : public mw::OpType, public mw::StraightThrough { … };
class StraightThrough {
 public:
  virtual ~StraightThrough() = default;
};

}  // namespace mw
