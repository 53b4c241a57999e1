// Brings tokens and their weights to the experts that they chose (dispatch), and the experts'
// outputs back to the tokens (combine).
#include <algorithm>

#include "kernel.h"
#include "meshwright/engine/host.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

// The token of each choice. On a CPU floor_divide would allocate a tensor for the divisor.
at::Tensor tokens_of(const at::Tensor& order, std::int64_t top) {
  if (!order.is_cpu()) return at::floor_divide(order, top);
  const at::Tensor choices = order.contiguous(), tokens = at::empty_like(choices);
  const auto* from = choices.const_data_ptr<std::int64_t>();
  std::transform(from, from + choices.numel(), tokens.mutable_data_ptr<std::int64_t>(),
                 [top](std::int64_t choice) { return choice / top; });
  return tokens;
}

// A view of x with one row for each token.
at::Tensor by_token(const at::Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// Adds the gradients of rows to that of input 0, from whose places `from` they were taken.
void add_rows(const Op& op, OpCall& call, const at::Tensor& from) {
  const at::Tensor& rows = call.grad_outputs[0];
  Target to = target(call, 0, call.dims.shape(op.inputs[0].dims), rows.options());
  if (!to.add) to.tensor.zero_();
  std::vector<std::int64_t> flat = rows.sizes().vec();
  flat[0] = -1;
  to.tensor.view(flat).index_add_(0, from, rows);
}

class Dispatch final : public OpType {
 public:
  std::string kind() const override { return "dispatch"; }
  OpClass op_class() const override { return OpClass::dispatch; }

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
    const HostWait waits("rows of experts");
    const at::Tensor here =
        at::nonzero((picks >= experts.offset).logical_and_(picks < experts.offset + experts.size))
            .squeeze(1);
    const at::Tensor chosen = picks.index_select(0, here);
    const at::Tensor order = here.index_select(0, at::argsort(chosen, /*stable=*/true));
    const at::Tensor counts =
        counts_of(chosen - experts.offset, experts.size).to(at::kCPU).contiguous();
    const auto* first = counts.const_data_ptr<std::int64_t>();
    call.rows.assign(first, first + experts.size);
    set_outputs(call, {x.index_select(0, tokens_of(order, call.inputs[1].size(-1))), order});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const std::int64_t top = call.dims.at(op.inputs[1].dims.back()).size;
    add_rows(op, call, tokens_of(call.outputs[1], top));
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t rows = dims.count(op.output_dims[1]), cells = dims.count(op.output_dims[0]);
    const std::int64_t picks = dims.count(op.inputs[1].dims);
    Cost cost;
    cost.executed = static_cast<double>(piece == Piece::forward ? picks : cells);
    cost.bytes = static_cast<double>((piece == Piece::forward ? 2 : 3) * cells * element);
    const std::int64_t groups = dims.at(op.output_dims[0][0]).size;
    cost.workspace = 8 * (piece == Piece::forward ? 3 * rows + groups : rows);
    return cost;
  }
};

// Apart from Dispatch, since an axis that cuts a token's width would make partial sums of the
// weights.
class DispatchWeights final : public OpType {
 public:
  std::string kind() const override { return "dispatch"; }
  OpClass op_class() const override { return OpClass::dispatch; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, true};
    traits.backward_reads_output = {false};
    traits.fp32_outputs = {true};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    set_outputs(call, {call.inputs[0].flatten().index_select(0, call.inputs[1])});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (wanted(call, 0)) add_rows(op, call, call.inputs[1]);
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost;
    cost.workspace = 0;
    cost.bytes =
        static_cast<double>(dims.count(op.inputs[1].dims) * (8 + 2 * wide_element(element)));
    return cost;
  }
};

class Combine final : public OpType {
 public:
  explicit Combine(std::int64_t top) : top_(top) {}

  std::string kind() const override { return "combine"; }
  OpClass op_class() const override { return OpClass::combine; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& rows = call.inputs[0];
    const at::Tensor out = at::zeros(call.dims.shape(op.output_dims[0]), rows.options());
    by_token(out).index_add_(0, tokens_of(call.inputs[1], top_), rows);
    set_outputs(call, {out});
  }

  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor gradient = by_token(call.grad_outputs[0]);
    const at::Tensor tokens = tokens_of(call.inputs[1], top_);
    Target to = target(call, 0, {tokens.size(0), gradient.size(1)}, gradient.options());
    if (to.add) {
      to.tensor.add_(gradient.index_select(0, tokens));
    } else {
      at::index_select_out(to.tensor, gradient, 0, tokens);
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t cells = dims.count(op.inputs[0].dims);
    Cost cost;
    cost.executed = piece == Piece::forward ? static_cast<double>(cells) : 0;
    cost.bytes = static_cast<double>((piece == Piece::forward ? 3 : 2) * cells * element);
    cost.workspace = 8 * dims.count(op.inputs[1].dims);
    return cost;
  }

 private:
  const std::int64_t top_;  // choices of a token
};

}  // namespace

OpTypePtr dispatch() {
  return only<Dispatch>();
}
OpTypePtr dispatch_weights() {
  return only<DispatchWeights>();
}
OpTypePtr combine(std::int64_t top) {
  return only_of<Combine>(top);
}

}  // namespace mw
