// What an executor does with ops: gathers their operands, decides where gradients go,
// calls the kernels.
#include <algorithm>

#include "run/executor.h"

namespace mw {
// Decides whether this rank writes, adds to or leaves out the gradient of operand `input`.
void Executor::settle_gradient(const Instruction& i, std::size_t input, Microbatch& m,
                               OpCall& call) {
  const int slot = i.grad_inputs[input];
  call.wants[input] = slot >= 0;
  if (slot < 0) return;
  if (!lasts(slot)) {
    call.accumulate[input] = i.accumulate[input];
    if (i.accumulate[input]) {
      call.grad_inputs[input] = tensor(m, slot);
    } else if (i.in_place) {  // granted for all gradients or none (plan/lifetimes)
      call.grad_inputs[input] = tensor(m, i.inputs[input]);
    }
    return;
  }
  if (!sizes_.of_kind(0).contributes(i.contributing[input])) {
    call.wants[input] = false;
    return;
  }
  if (widens()) return;
  call.grad_inputs[input] = storage_.open(slot);
  call.accumulate[input] = storage_.written(slot);
  storage_.write(slot);
}

void Executor::call(const Instruction& i, const Microbatch& m, OpCall& call) {
  const Op& op = graph_.ops()[i.op];
  const int from = clock_.mark();
  switch (i.piece) {
    case Piece::forward:
      op.type->forward(op, call);
      break;
    case Piece::backward:
      op.type->backward(op, call);
      break;
    case Piece::dgrad:
      op.type->dgrad(op, call);
      break;
    case Piece::wgrad:
      op.type->wgrad(op, call);
      break;
  }
  double flops = m.sizes->cost(i.op, i.piece, i.ring_step).executed;
  if (!call.rows.empty()) flops *= share_of_rows(i, *m.sizes, call.rows);
  work_.push_back({&op, i.piece, flops, from, clock_.mark()});
}

void Executor::compute(const Instruction& i, Microbatch& m, int microbatch) {
  auto gather = [&](const std::vector<int>& slots) {
    std::vector<at::Tensor> tensors(slots.size());
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] >= 0) tensors[k] = tensor(m, slots[k]);
    }
    return tensors;
  };
  OpCall call{m.sizes->dims(i.op, i.ring_step),
              gather(i.inputs),
              {},
              {},
              {},
              {},
              {},
              {},
              i.in_place,
              real_,
              {},
              i.ring_step,
              i.ring_steps};
  if (i.piece == Piece::forward) {
    if (i.ring_step > 0) {
      call.outputs = gather(i.outputs);
      call.saved = gather(i.saved);
    } else {
      call.outputs.resize(i.outputs.size());
      call.saved.resize(i.saved.size());
    }
    take_rows(i, m, call);
    if (watcher_ != nullptr && i.ring_step == 0 && !recomputes(i)) {
      for (int slot : i.inputs) {
        if (slot >= 0) watcher_->reads(i, slot, microbatch, tensor(m, slot));
      }
    }
    this->call(i, m, call);
    keep_rows(i, m, call);
    for (std::size_t k = 0; k < i.outputs.size(); ++k)
      m.slots[i.outputs[k]] = std::move(call.outputs[k]);
    for (std::size_t k = 0; k < i.saved.size(); ++k) m.slots[i.saved[k]] = std::move(call.saved[k]);
    if (watcher_ != nullptr && i.ring_step + 1 == i.ring_steps && !recomputes(i)) {
      for (int slot : i.outputs) watcher_->computed(i, slot, microbatch, tensor(m, slot));
    }
    return;
  }
  call.outputs = gather(i.outputs);
  call.saved = gather(i.saved);
  call.grad_outputs = gather(i.grad_outputs);
  if (watcher_ != nullptr && i.piece != Piece::wgrad && i.ring_step == 0) {
    for (int slot : i.grad_outputs) {
      if (slot >= 0) watcher_->computed(i, slot, microbatch, tensor(m, slot));
    }
  }
  call.grad_inputs.resize(i.grad_inputs.size());
  call.wants.assign(i.grad_inputs.size(), false);
  call.accumulate.assign(i.grad_inputs.size(), false);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) settle_gradient(i, k, m, call);
  if (std::none_of(call.wants.begin(), call.wants.end(), [](bool w) { return w; })) return;
  take_rows(i, m, call);
  this->call(i, m, call);
  keep_rows(i, m, call);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    const int slot = i.grad_inputs[k];
    if (slot < 0) continue;
    if (!lasts(slot)) {
      m.slots[slot] = call.grad_inputs[k];
    } else if (call.wants[k] && widens()) {
      storage_.add(slot, call.grad_inputs[k]);
    }
  }
}

}  // namespace mw
