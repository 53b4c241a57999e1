// Calls the kernels of one op as an executor does: below autograd, with only the tensors that a
// program keeps.
#include "prove/lemmas/op_case.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <limits>

namespace mw::lemmas {

OpCall call_of(const OpCase& c, const Tensors& inputs) {
  OpCall call{c.dims, inputs, {}, {}, {}, {}, c.wants, {}, false, at::kDouble};
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.is_floating_point()) call.real = input.scalar_type();
  }
  call.outputs.resize(c.op.output_dims.size());
  call.saved.resize(c.op.type->traits(c.op).saved.size());
  call.accumulate.assign(inputs.size(), false);
  call.rows = c.rows;
  return call;
}

void keep_for_backward(const OpTraits& traits, OpCall& call) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (!traits.backward_reads_input.at(i)) call.inputs[i] = at::Tensor();
  }
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    if (!traits.backward_reads_output.at(o)) call.outputs[o] = at::Tensor();
  }
}

void run_backward(const OpCase& c, const OpTraits& traits, OpCall& call) {
  if (!traits.splits) {
    c.op.type->backward(c.op, call);
    return;
  }
  const std::vector<bool> wants = call.wants;
  const Tensors inputs = call.inputs;
  if (wants[0]) {
    std::fill(call.wants.begin() + 1, call.wants.end(), false);
    call.inputs[0] = at::Tensor();
    c.op.type->dgrad(c.op, call);
  }
  call.wants = wants;
  call.wants[0] = false;
  call.inputs = inputs;
  for (std::size_t i = 0; i < c.parameters.size(); ++i) {
    if (c.parameters[i]) call.inputs[i] = at::Tensor();
  }
  if (std::find(call.wants.begin(), call.wants.end(), true) != call.wants.end())
    c.op.type->wgrad(c.op, call);
  call.wants = wants;
  call.inputs = inputs;
}

Made forward(const OpCase& c) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  OpCall call = call_of(c, c.inputs);
  c.op.type->forward(c.op, call);
  return {call.outputs, call.saved, {}, call.rows, {}};
}

namespace {

// Sets the tensors that backward writes gradients into.
void give(const OpCase& c, Into into, const Tensors& before, OpCall& call) {
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.wants[i]) continue;
    if (into == Into::saved) {
      if (call.inputs[i].defined()) call.grad_inputs[i] = call.inputs[i] = c.inputs[i].clone();
      continue;
    }
    call.grad_inputs[i] =
        into == Into::added ? before[i].clone()
                            : at::full_like(c.inputs[i], std::numeric_limits<double>::quiet_NaN());
    call.accumulate[i] = into == Into::added;
  }
}

}  // namespace

Made run(const OpCase& c, const Tensors& grad_outputs, Into into, const Tensors& before) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const OpTraits traits = c.op.type->traits(c.op);
  OpCall call = call_of(c, c.inputs);
  c.op.type->forward(c.op, call);
  Made made{call.outputs, call.saved, {}, call.rows, {}};
  if (!traits.differentiable) return made;
  keep_for_backward(traits, call);
  call.grad_outputs = grad_outputs;
  call.grad_inputs.resize(c.inputs.size());
  if (into != Into::fresh) give(c, into, before, call);
  const Tensors given = call.grad_inputs;
  run_backward(c, traits, call);
  call.grad_inputs.resize(c.inputs.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i].defined()) continue;
    const at::Tensor& now = call.grad_inputs[i];
    if (!now.defined() || now.data_ptr() != given[i].data_ptr()) made.replaced.push_back(i);
  }
  made.inputs = call.grad_inputs;
  return made;
}

}  // namespace mw::lemmas
