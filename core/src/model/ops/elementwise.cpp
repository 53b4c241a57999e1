// SwiGLU, GELU and the residual add.
#include "meshwright/ops.h"
#include "model/ops/kernel.h"

namespace mw {
namespace {

using namespace kernel;

std::int64_t flat_step(const at::Tensor& like, std::int64_t count) {
  return chunk_rows(like, count, like.element_size());
}

Cost elementwise(std::int64_t elements, double operations, int passes, int element) {
  Cost cost;
  cost.executed = operations * static_cast<double>(elements);
  cost.bytes = static_cast<double>(passes) * static_cast<double>(elements) * element;
  return cost;
}

class SwiGlu final : public OpType {
 public:
  std::string kind() const override { return "swiglu"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false};
    traits.backward_may_overwrite_saved = true;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor gate = call.inputs[0].reshape({-1}), up = call.inputs[1].reshape({-1});
    at::Tensor y = at::empty_like(gate);
    const std::int64_t step = flat_step(gate, gate.numel());
    for (std::int64_t i = 0; i < gate.numel(); i += step) {
      const std::int64_t n = std::min(step, gate.numel() - i);
      at::Tensor yc = part_of(y, 0, i, n);
      at::silu_out(yc, part_of(gate, 0, i, n));
      yc.mul_(part_of(up, 0, i, n));
    }
    set_outputs(call, {y.view(call.inputs[0].sizes())});
  }

  // Each chunk's operands are read before the gradients that may lie on them are written.
  void backward(const Op&, OpCall& call) const override {
    const at::Tensor gate = call.inputs[0].reshape({-1}), up = call.inputs[1].reshape({-1});
    const at::Tensor dy = call.grad_outputs[0].reshape({-1});
    const std::int64_t count = gate.numel();
    const at::IntArrayRef shape = call.grad_outputs[0].sizes();
    Target dgate, dup;
    if (wanted(call, 0)) dgate = target(call, 0, shape, gate.options());
    if (wanted(call, 1)) dup = target(call, 1, shape, gate.options());
    const std::int64_t step = flat_step(gate, count);
    const at::Tensor buffer = at::empty({2, std::min(step, count)}, gate.options());
    for (std::int64_t i = 0; i < count; i += step) {
      const std::int64_t n = std::min(step, count - i);
      const at::Tensor gc = part_of(gate, 0, i, n), uc = part_of(up, 0, i, n),
                       dc = part_of(dy, 0, i, n);
      at::Tensor t = part_of(buffer[0], 0, 0, n), s = part_of(buffer[1], 0, 0, n);
      if (dgate.tensor.defined()) at::mul_out(t, dc, uc);
      if (dup.tensor.defined()) {
        at::silu_out(s, gc);
        at::Tensor to = part_of(dup.tensor.view({-1}), 0, i, n);
        if (dup.add) {
          to.addcmul_(s, dc);
        } else {
          at::mul_out(to, s, dc);
        }
      }
      if (dgate.tensor.defined()) {
        at::Tensor to = part_of(dgate.tensor.view({-1}), 0, i, n);
        at::Tensor made = dgate.add ? s : to;
        at::silu_backward_out(made, t, gc);
        if (dgate.add) to.add_(made);
      }
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    if (piece == Piece::forward) return elementwise(elements, 5, 3, element);
    Cost cost = elementwise(elements, 12, 5, element);
    cost.workspace = 2 * std::min(chunk_rows(elements, element), elements) * element;
    return cost;
  }
};

class Gelu final : public OpType {
 public:
  std::string kind() const override { return "gelu"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false};
    traits.backward_may_overwrite_saved = true;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    set_outputs(call, {at::gelu(call.inputs[0], "tanh")});
  }

  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor x = call.inputs[0].reshape({-1}), dy = call.grad_outputs[0].reshape({-1});
    const Target dx = target(call, 0, call.grad_outputs[0].sizes(), x.options());
    const std::int64_t count = x.numel(), step = dx.add ? flat_step(x, count) : count;
    const at::Tensor buffer =
        dx.add ? at::empty({std::min(step, count)}, x.options()) : at::Tensor();
    for (std::int64_t i = 0; i < count; i += step) {
      const std::int64_t n = std::min(step, count - i);
      at::Tensor to = part_of(dx.tensor.view({-1}), 0, i, n);
      at::Tensor made = dx.add ? part_of(buffer, 0, 0, n) : to;
      at::gelu_backward_out(made, part_of(dy, 0, i, n), part_of(x, 0, i, n), "tanh");
      if (dx.add) to.add_(made);
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    if (piece == Piece::forward) return elementwise(elements, 10, 2, element);
    return elementwise(elements, 20, 3, element);
  }
};

class Add final : public OpType {
 public:
  std::string kind() const override { return "add"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, false};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {true, true};
    traits.forward_in_place = 1;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    at::Tensor branch = call.inputs[1];
    set_outputs(call,
                {call.in_place ? branch.add_(call.inputs[0]) : at::add(call.inputs[0], branch)});
  }

  // For callers that do not pass the gradient on by themselves.
  void backward(const Op&, OpCall& call) const override {
    for (std::size_t i = 0; i < 2; ++i) {
      if (!wanted(call, i)) continue;
      const at::Tensor& dy = call.grad_outputs[0];
      Target to = target(call, i, dy.sizes(), dy.options());
      if (to.add) {
        to.tensor.add_(dy);
      } else {
        to.tensor.copy_(dy);
      }
    }
  }

  // A gradient that passes costs nothing.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    if (piece != Piece::forward) return {};
    return elementwise(dims.count(op.inputs[0].dims), 1, 3, element);
  }
};

}  // namespace

OpTypePtr swiglu() {
  return only<SwiGlu>();
}
OpTypePtr gelu() {
  return only<Gelu>();
}
OpTypePtr add() {
  return only<Add>();
}

}  // namespace mw
