// Tokens to the experts they chose, and what the experts made of them back.
#include <algorithm>

#include "model/ops.h"
#include "model/ops/kernel.h"

namespace mw {
namespace {

using namespace kernel;

at::Tensor tokens_of(const at::Tensor& order, std::int64_t top) {
  return at::floor_divide(order, top);
}

// A token a row.
at::Tensor by_token(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

class Dispatch final : public OpType {
 public:
  std::string kind() const override { return "dispatch"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, false};
    traits.backward_reads_output = {false, true};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const LocalDim& experts = call.dims.at(op.output_dims[0][0]);
    const at::Tensor x = by_token(call.inputs[0]);
    const at::Tensor picks = call.inputs[1].flatten();
    const at::Tensor here =
        at::nonzero((picks >= experts.offset).logical_and_(picks < experts.offset + experts.size))
            .squeeze(1);
    const at::Tensor chosen = picks.index_select(0, here);
    const at::Tensor order = here.index_select(0, at::argsort(chosen, /*stable=*/true));
    const at::Tensor counts =
        at::bincount(chosen - experts.offset, {}, experts.size).to(at::kCPU).contiguous();
    const auto* first = counts.const_data_ptr<std::int64_t>();
    call.rows.assign(first, first + experts.size);
    set_outputs(call, {x.index_select(0, tokens_of(order, call.inputs[1].size(-1))), order});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const Dims& dims = op.inputs[0].dims;
    const at::Tensor& gradient = call.grad_outputs[0];
    const std::int64_t top = call.dims.at(op.inputs[1].dims.back()).size;
    const std::vector<std::int64_t> shape = call.dims.shape(dims);
    Target to = target(call, 0, shape, gradient.options());
    if (!to.add) to.tensor.zero_();
    to.tensor.view({-1, shape.back()}).index_add_(0, tokens_of(call.outputs[1], top), gradient);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t rows = dims.count(op.output_dims[1]), cells = dims.count(op.output_dims[0]);
    const std::int64_t picks = dims.count(op.inputs[1].dims);
    Cost cost;
    cost.executed = static_cast<double>(piece == Piece::forward ? picks : cells);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 2 : 3) * cells * element);
    cost.workspace = piece == Piece::forward ? 8 * (2 * picks + 3 * rows) : 8 * rows;
    return cost;
  }
};

class Combine final : public OpType {
 public:
  std::string kind() const override { return "combine"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false, false};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& y = call.inputs[0];
    const std::vector<std::int64_t> shape = call.dims.shape(op.output_dims[0]);
    at::Tensor out = at::zeros(shape, y.options());
    const Chosen chosen = chosen_of(call, y);
    out.view({-1, shape.back()}).index_add_(0, chosen.tokens, y * chosen.weights);
    set_outputs(call, {out});
  }

  void backward(const Op&, OpCall& call) const override {
    const at::Tensor& y = call.inputs[0];
    const Chosen chosen = chosen_of(call, y);
    const at::Tensor rows = by_token(call.grad_outputs[0]).index_select(0, chosen.tokens);
    if (wanted(call, 1)) {
      const at::Tensor& weights = call.inputs[1];
      at::Tensor gradient = at::zeros({weights.numel()}, weights.options());
      gradient.index_copy_(0, call.inputs[2], (rows * y).sum(1).to(weights.scalar_type()));
      deliver(call, 1, gradient.view(weights.sizes()));
    }
    if (wanted(call, 0)) deliver(call, 0, rows * chosen.weights);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t cells = dims.count(op.inputs[0].dims), rows = dims.count(op.inputs[2].dims);
    Cost cost;
    cost.executed = static_cast<double>((piece == Piece::forward ? 2 : 4) * cells);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 4 : 6) * cells * element);
    cost.workspace = (8 + 2 * wide_element(element)) * rows +
                     (piece == Piece::forward ? 1 : 2) * cells * element;
    return cost;
  }

 private:
  struct Chosen {
    at::Tensor tokens, weights;  // of each row
  };
  static Chosen chosen_of(const OpCall& call, const at::Tensor& like) {
    const at::Tensor &weights = call.inputs[1], &order = call.inputs[2];
    return {tokens_of(order, weights.size(-1)),
            weights.flatten().index_select(0, order).to(like.scalar_type()).unsqueeze(1)};
  }
};

}  // namespace

OpTypePtr dispatch() {
  static const OpTypePtr type = std::make_shared<Dispatch>();
  return type;
}
OpTypePtr combine() {
  static const OpTypePtr type = std::make_shared<Combine>();
  return type;
}

}  // namespace mw
