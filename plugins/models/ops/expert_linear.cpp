// A linear layer for each expert of this rank, over the rows of the tokens that chose the expert.
#include <algorithm>

#include "gemm.h"
#include "kernel.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

struct ExpertSizes {
  std::int64_t experts = 1, rows = 1, n = 1, k = 1;
};

ExpertSizes expert_sizes(const Op& op, const LocalDims& dims) {
  const Dims &x = op.inputs[0].dims, &weight = op.inputs[1].dims;
  ExpertSizes sizes;
  sizes.experts = dims.at(weight[0]).size;
  sizes.n = dims.at(weight[1]).size;
  sizes.k = dims.at(weight[2]).size;
  sizes.rows = dims.count(x) / std::max<std::int64_t>(sizes.k, 1);
  return sizes;
}

// Whether ATen's product for all experts at once is used. It has kernels for bf16 on accelerators,
// of rows that are multiples of 16 bytes; elsewhere it is the same loop as here.
bool grouped(const at::Tensor& x, const at::Tensor& weight) {
  return !x.is_cpu() && x.scalar_type() == at::kBFloat16 && weight.size(1) % 8 == 0 &&
         weight.size(2) % 8 == 0;
}

at::Tensor ends_of(const OpCall& call) {
  std::vector<std::int32_t> ends;
  std::int64_t end = 0;
  for (std::int64_t rows : call.rows) ends.push_back(static_cast<std::int32_t>(end += rows));
  const at::Tensor& like = call.grad_outputs.empty() ? call.inputs[0] : call.grad_outputs[0];
  return at::tensor(ends, at::kInt).to(like.device(), /*non_blocking=*/true);
}

template <class Do>
void for_each_expert(const OpCall& call, const Do& what) {
  std::int64_t first = 0;
  for (std::size_t e = 0; e < call.rows.size(); ++e) {
    what(static_cast<std::int64_t>(e), first, call.rows[e]);
    first += call.rows[e];
  }
}

class ExpertLinear final : public OpType {
 public:
  std::string kind() const override { return "expert_linear"; }
  OpClass op_class() const override { return OpClass::matrix_product; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.splits = true;
    traits.backward_reads_input = {true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor &x = call.inputs[0], &weight = call.inputs[1];
    if (grouped(x, weight)) {
      set_outputs(call, {at::_grouped_mm(x, weight.transpose(1, 2), ends_of(call))});
      return;
    }
    const at::Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
    for_each_expert(call, [&](std::int64_t e, std::int64_t first, std::int64_t rows) {
      if (rows == 0) return;
      passing_product_into(y.narrow(0, first, rows), x.narrow(0, first, rows), weight[e].t(),
                           false);
    });
    set_outputs(call, {y});
  }

  void dgrad(const Op&, OpCall& call) const override {
    const at::Tensor &dy = call.grad_outputs[0], &weight = call.inputs[1];
    if (grouped(dy, weight)) {
      deliver(call, 0, at::_grouped_mm(dy, weight, ends_of(call)));
      return;
    }
    Target to = target(call, 0, {dy.size(0), weight.size(2)}, dy.options());
    for_each_expert(call, [&](std::int64_t e, std::int64_t first, std::int64_t rows) {
      if (rows == 0) return;
      passing_product_into(to.tensor.narrow(0, first, rows), dy.narrow(0, first, rows), weight[e],
                           to.add);
    });
  }

  void wgrad(const Op& op, OpCall& call) const override {
    if (!wanted(call, 1)) return;
    const at::Tensor &x = call.inputs[0], &dy = call.grad_outputs[0];
    Target to = target(call, 1, call.dims.shape(op.inputs[1].dims), dy.options());
    for_each_expert(call, [&](std::int64_t e, std::int64_t first, std::int64_t rows) {
      at::Tensor dw = to.tensor[e];
      if (rows == 0) {
        if (!to.add) dw.zero_();
        return;
      }
      passing_product_into(dw, dy.narrow(0, first, rows).t(), x.narrow(0, first, rows), to.add);
    });
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const auto [experts, rows, n, k] = expert_sizes(op, dims);
    Cost cost;
    cost.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k);
    cost.executed = cost.flops;
    cost.bytes = static_cast<double>(rows * (n + k) + experts * n * k) * element;
    cost.accelerator_workspace = 0;
    return cost;
  }
};

// Adds the bias of each expert to its rows, times the weights of the rows if there are any.
class ExpertBias final : public OpType {
 public:
  std::string kind() const override { return "expert_bias"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, weighed(op)};
    if (weighed(op)) traits.backward_reads_input.push_back(true);
    traits.backward_reads_output = {false};
    traits.gradient_passes.assign(op.inputs.size(), false);
    traits.gradient_passes[0] = true;
    traits.forward_in_place = 0;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor &x = call.inputs[0], &bias = call.inputs[1];
    const at::Tensor y = call.in_place ? x : x.clone();
    for_each_expert(call, [&](std::int64_t e, std::int64_t first, std::int64_t rows) {
      at::Tensor part = y.narrow(0, first, rows);
      if (weighed(op))
        part.addr_(call.inputs[2].narrow(0, first, rows).to(x.scalar_type()), bias[e]);
      else
        part.add_(bias[e]);
    });
    set_outputs(call, {y});
  }

  void backward(const Op& op, OpCall& call) const override {
    const at::Tensor& dy = call.grad_outputs[0];
    if (wanted(call, 0)) put(target(call, 0, dy.sizes(), dy.options()), dy);
    const auto each = [&](std::size_t input, const auto& made) {
      if (!wanted(call, input)) return;
      const std::vector<std::int64_t> shape =
          input == 1 ? call.dims.shape(op.inputs[1].dims) : call.inputs[2].sizes().vec();
      const Target to =
          target(call, input, shape, input == 1 ? dy.options() : call.inputs[2].options());
      for_each_expert(call, [&](std::int64_t e, std::int64_t first, std::int64_t rows) {
        const at::Tensor place = input == 1 ? to.tensor[e] : to.tensor.narrow(0, first, rows);
        put({place, to.add}, made(dy.narrow(0, first, rows), e, first, rows));
      });
    };
    each(1, [&](const at::Tensor& part, std::int64_t, std::int64_t first, std::int64_t rows) {
      if (!weighed(op)) return part.sum(0);
      return at::mv(part.t(), call.inputs[2].narrow(0, first, rows).to(dy.scalar_type()));
    });
    if (!weighed(op)) return;
    each(2, [&](const at::Tensor& part, std::int64_t e, std::int64_t, std::int64_t) {
      return at::mv(part, call.inputs[1][e]);
    });
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t rows = dims.count(op.inputs[0].dims), bias = dims.count(op.inputs[1].dims);
    Cost cost;
    cost.executed = static_cast<double>((weighed(op) ? 2 : 1) * rows);
    cost.bytes = static_cast<double>((2 * rows + bias) * element);
    if (piece == Piece::forward) cost.workspace = 0;  // else measured: sums take more or less
    cost.accelerator_workspace = 2 * rows * element;
    return cost;
  }

 private:
  static bool weighed(const Op& op) { return op.inputs.size() > 2; }
};

}  // namespace

OpTypePtr expert_linear() {
  return only<ExpertLinear>();
}
OpTypePtr expert_bias() {
  return only<ExpertBias>();
}

}  // namespace mw
