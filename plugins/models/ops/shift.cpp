// Labels of tokens further on, and a loss that leaves out tokens for which there are none: what the
// prediction of more than one token needs [DeepSeek-AI 2024, "DeepSeek-V3", section 2.2].
#include <algorithm>

#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/ops.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

struct ShiftOptions {
  std::int64_t by = 0;
  bool documents = false;
  friend bool operator==(const ShiftOptions&, const ShiftOptions&) = default;
};

class Shift final : public OpType {
 public:
  explicit Shift(const ShiftOptions& options) : by_(options.by), documents_(options.documents) {}

  std::string kind() const override { return "shift"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = traits_without_reads(op);
    traits.differentiable = false;
    return traits;
  }
  std::optional<Op> in_documents(const Op& op, int starts, Graph&) const override {
    Op form = op;
    form.type = only_of<Shift>(ShiftOptions{by_, true});
    form.inputs.push_back({starts, op.inputs[0].dims});
    return form;
  }

  std::optional<Op> in_parted_documents(const Op& op, int places, int, Graph&) const override {
    Op form = op;
    form.inputs.push_back({places, op.inputs[0].dims});
    return form;
  }

  // The whole sequence is here, in an order that a strategy may have changed. A token without a
  // token so far on gets the last one of the sequence, or of its document.
  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    const TokenOrder order = call.inputs.size() > 2
                                 ? TokenOrder(call.inputs[2])
                                 : TokenOrder(call.dims.at(op.inputs[0].dims[1]), x);
    const std::int64_t tokens = x.size(1);
    at::Tensor from =
        at::arange(by_, tokens + by_, x.options()).clamp_max_(tokens - 1).expand_as(x);
    if (documents_) {
      const at::Tensor starts = order.sorted(call.inputs[1]).contiguous();
      const at::Tensor ends = at::searchsorted(starts, starts, /*out_int32=*/false, /*right=*/true);
      from = at::minimum(from, ends - 1);
    }
    set_outputs(call, {order.as_they_lay(order.sorted(x).gather(1, from))});
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int) const override {
    Cost cost;
    const std::int64_t labels = dims.count(op.output_dims[0]);
    cost.bytes = (documents_ ? 64.0 : 16.0) * static_cast<double>(labels);
    cost.accelerator_workspace = documents_ ? 40 * labels : 0;
    return cost;
  }

 private:
  const std::int64_t by_;
  const bool documents_;  // the second input has the places of documents
};

// Makes the last tokens of a sequence count nothing in a loss: their statistics, of (stat, batch,
// seq), become those of a loss of 0.
class WithoutLast final : public AutogradOp {
 public:
  explicit WithoutLast(std::int64_t count) : count_(count) {}

  std::string kind() const override { return "without_last"; }
  OpClass op_class() const override { return OpClass::loss_part; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    traits.fp32_outputs = {true};  // the statistics are fp32 (ce_stats)
    return traits;
  }
  std::optional<Op> in_parted_documents(const Op& op, int places, int, Graph&) const override {
    Op form = op;
    form.inputs.push_back({places, {op.inputs[0].dims[1], op.inputs[0].dims[2]}});
    return form;
  }
  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor& stats = inputs[0];
    const LocalDim& seq = dims.at(op.inputs[0].dims[2]);
    const at::Tensor places = inputs.size() > 1 ? inputs[1] : places_of(seq, stats),
                     keep = places.lt(seq.global - count_).to(stats.scalar_type());
    at::Tensor none = at::stack({1 - keep, at::zeros_like(keep)});
    if (keep.dim() == 1) none = none.unsqueeze(1);
    return {stats * keep + none};
  }

 private:
  const std::int64_t count_;
};

}  // namespace

OpTypePtr shift(std::int64_t by) {
  return only_of<Shift>(ShiftOptions{by});
}
OpTypePtr without_last(std::int64_t count) {
  return only_of<WithoutLast>(count);
}

}  // namespace mw
