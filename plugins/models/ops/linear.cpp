// A linear layer in three pieces: forward, the input's gradient (dgrad) and the weight's
// (wgrad), which may run later.
#include <algorithm>

#include "gemm.h"
#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

// x (m, k) times weight (n, k) transposed.
struct Sizes {
  std::int64_t m = 1, n = 1, k = 1;
};

Sizes sizes_of(const Op& op, const LocalDims& dims) {
  Sizes sizes;
  const Dims& x = op.inputs[0].dims;
  const Dims& weight = op.inputs[1].dims;
  for (Dim dim : weight) {
    const bool contracted = std::find(x.begin(), x.end(), dim) != x.end();
    (contracted ? sizes.k : sizes.n) *= dims.at(dim).size;
  }
  sizes.m = dims.count(x) / std::max<std::int64_t>(sizes.k, 1);
  return sizes;
}

bool biased(const Op& op) {
  return op.inputs.size() > 2;
}

class Linear final : public OpType {
 public:
  std::string kind() const override { return "linear"; }
  OpClass op_class() const override { return OpClass::matrix_product; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.splits = true;
    traits.backward_reads_input = {true, true};
    if (biased(op)) traits.backward_reads_input.push_back(false);
    traits.backward_reads_output = {false};
    traits.gradient_passes.assign(op.inputs.size(), false);
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const auto [m, n, k] = sizes_of(op, call.dims);
    const at::Tensor x = call.inputs[0].reshape({m, k});
    const at::Tensor weight = call.inputs[1].reshape({n, k});
    const at::Tensor bias = biased(op) ? call.inputs[2].reshape({n}) : at::Tensor();
    const at::Tensor y = linear_product(x, weight, bias);
    set_outputs(call, {y.view(call.dims.shape(op.output_dims[0]))});
  }

  void dgrad(const Op& op, OpCall& call) const override {
    const auto [m, n, k] = sizes_of(op, call.dims);
    const at::Tensor dy = call.grad_outputs[0].reshape({m, n});
    const at::Tensor weight = call.inputs[1].reshape({n, k});
    const std::vector<std::int64_t> shape = call.dims.shape(op.inputs[0].dims);
    if (call.grad_inputs.empty() || !call.grad_inputs[0].defined()) {
      deliver(call, 0, linear_product(dy, weight.t()).view(shape));
      return;
    }
    Target to = target(call, 0, shape, dy.options());
    product_into(to.tensor.view({m, k}), dy, weight, to.add);
  }

  void wgrad(const Op& op, OpCall& call) const override {
    const auto [m, n, k] = sizes_of(op, call.dims);
    const at::Tensor dy = call.grad_outputs[0].reshape({m, n});
    if (wanted(call, 1)) {
      const at::Tensor x = call.inputs[0].reshape({m, k});
      Target to = target(call, 1, call.dims.shape(op.inputs[1].dims), dy.options());
      product_into(to.tensor.view({n, k}), dy.t(), x, to.add);
    }
    if (biased(op) && wanted(call, 2)) {
      Target to = target(call, 2, call.dims.shape(op.inputs[2].dims), dy.options());
      put({to.tensor.view({n}), to.add}, dy.sum(0));
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const auto [m, n, k] = sizes_of(op, dims);
    Cost cost;
    cost.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    cost.executed = cost.flops;
    double elements = static_cast<double>(m * k + n * k + m * n);
    if (biased(op) && piece != Piece::dgrad) {
      cost.executed += static_cast<double>(m * n);
      elements += static_cast<double>(n);
    }
    // The bias gradient, before it is added to what is there.
    cost.accelerator_workspace = biased(op) && piece == Piece::wgrad ? n * element : 0;
    cost.bytes = elements * element;
    return cost;
  }
};

}  // namespace

OpTypePtr linear() {
  return only<Linear>();
}

}  // namespace mw
