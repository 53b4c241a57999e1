// Runs backward of ops that only state their forward: torch's autograd differentiates the local
// computation, without any communication.
#include "meshwright/autograd_op.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "kernel.h"

namespace mw {

OpTraits AutogradOp::traits(const Op& op) const {
  OpTraits traits;
  traits.backward_reads_input.assign(op.inputs.size(), true);
  traits.backward_reads_output.assign(op.output_dims.size(), false);
  traits.gradient_passes.assign(op.inputs.size(), false);
  return traits;
}

void AutogradOp::forward(const Op& op, OpCall& call) const {
  const at::NoGradGuard no_grad;
  call.outputs = compute(op, call.dims, call.inputs);
}

void AutogradOp::backward(const Op& op, OpCall& call) const {
  const RecordGradients record;
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> wanted;
  torch::autograd::variable_list leaves, roots, seeds;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    at::Tensor input = call.inputs[i].detach();
    if (kernel::wanted(call, i)) {
      input.requires_grad_(true);
      wanted.push_back(i);
      leaves.push_back(input);
    }
    inputs.push_back(std::move(input));
  }
  const std::vector<at::Tensor> outputs = compute(op, call.dims, inputs);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].requires_grad() || !call.grad_outputs.at(o).defined()) continue;
    roots.push_back(outputs[o]);
    seeds.push_back(call.grad_outputs[o]);
  }
  torch::autograd::variable_list gradients(leaves.size());
  if (!roots.empty() && !leaves.empty()) {
    gradients = torch::autograd::grad(roots, leaves, seeds, std::nullopt, false, true);
  }
  const at::NoGradGuard no_grad;
  for (std::size_t g = 0; g < wanted.size(); ++g) {
    kernel::deliver(call, wanted[g],
                    gradients[g].defined() ? gradients[g] : at::zeros_like(leaves[g].detach()));
  }
}

Cost AutogradOp::cost(const Op& op, Piece piece, const LocalDims& dims, int element) const {
  std::int64_t in = 0, out = 0;
  for (const Use& use : op.inputs) in += dims.count(use.dims);
  for (const Dims& output : op.output_dims) out += dims.count(output);
  const int passes = piece == Piece::forward ? 1 : 2;
  Cost cost;
  cost.executed = static_cast<double>(passes * (in + out));
  cost.bytes = static_cast<double>(passes * (in + out) * element);
  cost.accelerator_workspace = (out + (passes - 1) * in) * element;
  return cost;
}

}  // namespace mw
