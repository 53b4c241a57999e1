// SwiGLU, GELU and the residual add.
#include "fused.h"
#include "kernel.h"
#include "meshwright/ops.h"
#include "on_threads.h"

namespace mw {
namespace {

using namespace kernel;

std::int64_t flat_step(const at::Tensor& like, std::int64_t count) {
  return chunk_rows(like, count, like.element_size());
}

Cost elementwise(std::int64_t elements, double operations, int passes, int element) {
  Cost cost;
  cost.workspace = 0;
  cost.executed = operations * static_cast<double>(elements);
  cost.bytes = static_cast<double>(passes) * static_cast<double>(elements) * element;
  return cost;
}

// Weights are one for each row. Without weights, each element counts as a row.
class SwiGlu final : public OpType {
 public:
  std::string kind() const override { return "swiglu"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), true);
    traits.backward_reads_output = {false};
    traits.gradient_passes.assign(op.inputs.size(), false);
    traits.backward_may_overwrite_saved = true;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const Rows r(call);
    const at::Tensor y = at::empty(r.gate.sizes(), r.gate.options());
    set_outputs(call, {y.view(call.inputs[0].sizes())});
    const Kernels& kernels = kernels_of(call);
    if (kernels.fused.run({kernels.y}, {{y}}, {r.gate, r.up, r.weights})) return;
    if (looped(r.gate, r.up, r.weights)) {
      in_its_type(y, [&]<class T>(T) {
        r.on_threads([&](std::int64_t first, std::int64_t rows, std::int64_t columns) {
          vector::loops<T>().swiglu_forward(r.from<T>(y, first), r.from<T>(r.gate, first),
                                            r.from<T>(r.up, first), r.from<T>(r.weights, first),
                                            rows, columns);
        });
      });
      return;
    }
    r.in_chunks([&](std::int64_t i, std::int64_t n) {
      at::Tensor to = part_of(y, 0, i, n);
      at::silu_out(to, part_of(r.gate, 0, i, n));
      to.mul_(part_of(r.up, 0, i, n));
      if (r.weights.defined()) to.mul_(part_of(r.weights, 0, i, n));
    });
  }

  // Each chunk's operands are read before gradients that may share their memory are written.
  void backward(const Op&, OpCall& call) const override {
    const Rows r(call);
    const at::Tensor dy = call.grad_outputs[0].reshape(r.gate.sizes());
    const auto to = [&](std::size_t i, at::IntArrayRef shape) {
      return wanted(call, i) ? target(call, i, shape, call.inputs[i].options()) : Target();
    };
    const at::IntArrayRef shape = call.grad_outputs[0].sizes();
    const Target dgate = to(0, shape), dup = to(1, shape);
    Target dweights = r.weights.defined() ? to(2, call.inputs[2].sizes()) : Target();
    if (dweights.tensor.defined()) dweights.tensor = dweights.tensor.view({-1});
    if (fused_backward(call, r, dy, {dgate, dup, dweights})) return;
    if (looped(r.gate, r.up, r.weights, dy, dgate.tensor, dup.tensor, dweights.tensor)) {
      in_its_type(dy, [&]<class T>(T) {
        r.on_threads([&](std::int64_t first, std::int64_t rows, std::int64_t columns) {
          vector::loops<T>().swiglu_backward(
              {r.from<T>(dy, first), r.from<T>(r.gate, first), r.from<T>(r.up, first),
               r.from<T>(r.weights, first), r.from<T>(dgate.tensor, first),
               r.from<T>(dup.tensor, first), r.from<T>(dweights.tensor, first), written(dgate),
               written(dup), written(dweights)},
              rows, columns);
        });
      });
      return;
    }
    const at::Tensor buffer =
        at::empty({dweights.tensor.defined() ? 3 : 2, std::min(r.step, r.count), r.gate.size(1)},
                  r.gate.options());
    r.in_chunks([&](std::int64_t i, std::int64_t n) {
      const at::Tensor gc = part_of(r.gate, 0, i, n), dc = part_of(dy, 0, i, n);
      at::Tensor t = part_of(buffer[0], 0, 0, n), s = part_of(buffer[1], 0, 0, n);
      at::mul_out(t, dc, part_of(r.up, 0, i, n));
      at::silu_out(s, gc);
      at::Tensor dw;
      if (dweights.tensor.defined()) {
        at::Tensor product = part_of(buffer[2], 0, 0, n);
        at::mul_out(product, t, s);
        dw = product.sum(1, false, dweights.tensor.scalar_type());
      }
      if (r.weights.defined()) {
        const at::Tensor weights = part_of(r.weights, 0, i, n);
        if (dgate.tensor.defined()) t.mul_(weights);
        if (dup.tensor.defined()) s.mul_(weights);
      }
      if (dw.defined()) put(dweights, 0, i, n, dw);
      if (dup.tensor.defined()) {
        at::Tensor up = part_of(dup.tensor.view(r.gate.sizes()), 0, i, n);
        if (dup.add) {
          up.addcmul_(s, dc);
        } else {
          at::mul_out(up, s, dc);
        }
      }
      if (!dgate.tensor.defined()) return;
      at::Tensor gate = part_of(dgate.tensor.view(r.gate.sizes()), 0, i, n);
      at::Tensor made = dgate.add ? s : gate;
      at::silu_backward_out(made, t, gc);
      if (dgate.add) gate.add_(made);
    });
  }

  // The workspace is that of ATen's kernels on every device; a fused kernel needs none.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    const bool weighed = op.inputs.size() > 2, half = element < wide_element(element);
    const std::int64_t rows = weighed ? dims.count(op.inputs[2].dims) : elements;
    const std::int64_t row = elements / std::max<std::int64_t>(rows, 1) * element;
    // weights rounded to the half type
    const std::int64_t own = weighed && half ? rows * element : 0;
    if (piece == Piece::forward) {
      Cost cost = elementwise(elements, weighed ? 6 : 5, 3, element);
      cost.workspace = own;
      return cost;
    }
    Cost cost = elementwise(elements, weighed ? 16 : 12, 5, element);
    // On a CPU only half types need memory: all others have loops. A sum in another type casts its
    // input first.
    const auto of = [&](std::int64_t step, std::int64_t cast) {
      const std::int64_t beside = weighed ? wide_element(element) + cast : 0;
      return std::min(step, rows) * ((weighed ? 3 : 2) * row + beside) + own;
    };
    cost.workspace = half ? of(chunk_rows(rows, row), 2 * row) : 0;
    cost.accelerator_workspace = of(rows, 0);
    return cost;
  }

 private:
  // Fused kernels of the gate, the up projection, the weights, and the output's gradient.
  struct Kernels {
    explicit Kernels(bool weighed)
        : Kernels(Expressions(), weighed ? "silu(a) * b * c" : "silu(a) * b") {}
    Kernels(Expressions f, const char* text)
        : y(f.parse(text)),
          gradients{f.gradient(y, 0, 3), f.gradient(y, 1, 3), f.operand(4)},
          weights(f.gradient(y, 2, 3)),
          fused(std::move(f), 4, {{RowReduction::Kind::sum, weights}}) {}
    int y;
    std::vector<int> gradients;
    int weights;  // the weights' gradient before it is summed over a row
    Fused fused;
  };
  static const Kernels& kernels_of(const OpCall& call) {
    static const Kernels plain(false), weighed(true);
    return call.inputs.size() > 2 ? weighed : plain;
  }

  struct Rows;
  static bool fused_backward(const OpCall& call, const Rows& r, const at::Tensor& dy,
                             std::vector<Target> to) {
    const Kernels& kernels = kernels_of(call);
    // One number for each row, beside the rows' elements.
    if (to[2].tensor.defined()) to[2].tensor = to[2].tensor.view({-1, 1});
    for (Target& one : to) {
      if (one.tensor.defined() && one.tensor.dim() != 2)
        one.tensor = one.tensor.view(r.gate.sizes());
    }
    return kernels.fused.run(kernels.gradients, to, {r.gate, r.up, r.weights, dy});
  }

  struct Rows {
    explicit Rows(const OpCall& call) {
      const bool weighed = call.inputs.size() > 2;
      const std::int64_t elements = call.inputs[0].numel();
      count = weighed ? call.inputs[2].numel() : elements;
      const std::int64_t columns = elements / std::max<std::int64_t>(count, 1);
      gate = call.inputs[0].reshape({count, columns});
      up = call.inputs[1].reshape({count, columns});
      if (weighed) weights = call.inputs[2].reshape({count, 1}).to(gate.scalar_type());
      step = chunk_rows(gate, count, columns * gate.element_size());
    }

    template <class Do>
    void in_chunks(const Do& what) const {
      for (std::int64_t i = 0; i < count; i += step) what(i, std::min(step, count - i));
    }

    // Calls what(first, rows, columns) for parts of the rows, which the threads share. Without
    // weights a row is one number, and the loop takes the numbers of a part as one row.
    template <class Do>
    void on_threads(const Do& what) const {
      rows_on_threads(count, gate.size(1), [&](std::int64_t begin, std::int64_t end) {
        weights.defined() ? what(begin, end - begin, gate.size(1)) : what(begin, 1, end - begin);
      });
    }
    // The numbers of a tensor from a row on; null if the tensor is undefined.
    template <class T>
    T* from(const at::Tensor& tensor, std::int64_t row) const {
      return tensor.defined() ? data<T>(tensor) + row * (tensor.numel() / count) : nullptr;
    }

    at::Tensor gate, up, weights;
    std::int64_t count = 0, step = 1;
  };
};

class Gelu final : public OpType {
 public:
  std::string kind() const override { return "gelu"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false};
    traits.backward_may_overwrite_saved = true;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    if (Fused::serves(x)) {
      const at::Tensor y = at::empty(x.sizes(), x.options());
      if (kernels().fused.run({kernels().y}, {{y}}, {x})) return set_outputs(call, {y});
    }
    set_outputs(call, {at::gelu(x, "tanh")});
  }

  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor x = call.inputs[0].reshape({-1}), dy = call.grad_outputs[0].reshape({-1});
    const Target dx = target(call, 0, call.grad_outputs[0].sizes(), x.options());
    if (kernels().fused.run({kernels().dx}, {{dx.tensor.view({-1}), dx.add}}, {x, dy})) return;
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

 private:
  // Fused kernels of the input and the output's gradient.
  struct Kernels {
    explicit Kernels(Expressions f = {})
        : y(f.parse("gelu(a)")), dx(f.gradient(y, 0, 1)), fused(std::move(f), 2) {}
    int y, dx;
    Fused fused;
  };
  static const Kernels& kernels() {
    static const Kernels all;
    return all;
  }
};

class Add final : public OpType {
 public:
  std::string kind() const override { return "add"; }
  OpClass op_class() const override { return OpClass::elementwise; }

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

  // Called only where the gradient is not simply passed on (OpTraits::gradient_passes).
  void backward(const Op&, OpCall& call) const override {
    for (std::size_t i = 0; i < 2; ++i) {
      if (!wanted(call, i)) continue;
      const at::Tensor& dy = call.grad_outputs[0];
      put(target(call, i, dy.sizes(), dy.options()), dy);
    }
  }

  // Backward costs nothing, as the gradient is passed on.
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    if (piece != Piece::forward) return elementwise(0, 0, 0, element);
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
