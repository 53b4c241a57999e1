// Labels of tokens further on, and a loss that leaves out tokens for which there are none: what the
// prediction of more than one token needs [DeepSeek-AI 2024, "DeepSeek-V3", section 2.2].
#include <algorithm>

#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/ops.h"

namespace mw {
namespace {

using namespace kernel;

class Shift final : public OpType {
 public:
  explicit Shift(std::int64_t by) : by_(by) {}

  std::string kind() const override { return "shift"; }
  OpTraits traits(const Op&) const override { return without_gradient(1); }

  // The whole sequence is here, in an order that a strategy may have changed.
  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor& x = call.inputs[0];
    const at::Tensor places = places_of(call.dims.at(op.inputs[0].dims[1]), x);
    const at::Tensor from = at::clamp_max(places + by_, places.numel() - 1);
    set_outputs(call, {x.index_select(1, places.argsort().index_select(0, from))});
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int) const override {
    Cost cost;
    cost.bytes = 16.0 * static_cast<double>(dims.count(op.output_dims[0]));
    cost.accelerator_workspace = 0;
    return cost;
  }

 private:
  const std::int64_t by_;
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
  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor& stats = inputs[0];
    const LocalDim& seq = dims.at(op.inputs[0].dims[2]);
    const at::Tensor keep = places_of(seq, stats).lt(seq.global - count_).to(stats.scalar_type());
    const at::Tensor none = at::stack({1 - keep, at::zeros_like(keep)}).unsqueeze(1);
    return {stats * keep + none};
  }

 private:
  const std::int64_t count_;
};

}  // namespace

OpTypePtr shift(std::int64_t by) {
  return only_of<Shift>(by);
}
OpTypePtr without_last(std::int64_t count) {
  return only_of<WithoutLast>(count);
}

}  // namespace mw
