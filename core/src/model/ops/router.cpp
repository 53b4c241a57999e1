// Routing: which experts a token chooses and with what weight, and the losses that keep the choice even.
#include "meshwright/autograd_op.h"
#include "model/ops.h"
#include "model/ops/kernel.h"

namespace mw {
namespace {

using namespace kernel;

at::Tensor affinities(const at::Tensor& logits, RouterScore score) {
  const at::Tensor wide_logits = logits.to(wide(logits));
  return score == RouterScore::softmax ? at::softmax(wide_logits, -1) : at::sigmoid(wide_logits);
}

class Route final : public OpType {
 public:
  explicit Route(const RouterOptions& options) : options_(options) {}

  std::string kind() const override { return "route"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, false};
    traits.backward_reads_output = {false, true};
    traits.fp32_outputs = {true, false};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor s = affinities(call.inputs[0], options_.score);
    const std::int64_t top = call.dims.at(op.output_dims[1].back()).size;
    const at::Tensor picks = std::get<1>((s + call.inputs[1].to(s.scalar_type())).topk(top, -1));
    at::Tensor weights = s.gather(-1, picks);
    if (options_.normalise) weights = weights / sum_of(weights);
    set_outputs(call, {weights.mul_(options_.scale), picks});
  }

  void backward(const Op& op, OpCall& call) const override {
    const at::Tensor& picks = call.outputs[1];
    if (wanted(call, 0)) deliver(call, 0, logit_gradient(call));
    if (!wanted(call, 1)) return;
    const std::int64_t experts = call.dims.at(op.inputs[1].dims[0]).size;
    // A tally: how many tokens chose each.
    deliver(call, 1,
            at::bincount(picks.flatten(), {}, experts)
                .to(call.grad_inputs.size() > 1 && call.grad_inputs[1].defined()
                        ? call.grad_inputs[1].scalar_type()
                        : wide(call.inputs[0])));
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t logits = dims.count(op.inputs[0].dims), top = dims.count(op.output_dims[1]);
    const std::int64_t wide = wide_element(element);
    Cost cost;
    cost.executed = 8.0 * static_cast<double>(logits);
    cost.bytes = static_cast<double>(logits * (element + 2 * wide));
    cost.workspace = piece == Piece::forward ? logits * (2 * wide) + top * 2 * wide
                                             : logits * (3 * wide) + top * 4 * wide;
    return cost;
  }

 private:
  static at::Tensor sum_of(const at::Tensor& weights) { return weights.sum(-1, true).add_(1e-20); }

  at::Tensor logit_gradient(const OpCall& call) const {
    const at::Tensor s = affinities(call.inputs[0], options_.score);
    const at::Tensor& picks = call.outputs[1];
    at::Tensor chosen = call.grad_outputs[0].to(s.scalar_type()) * options_.scale;
    if (options_.normalise) {  // of w / sum(w)
      const at::Tensor w = s.gather(-1, picks), total = sum_of(w);
      chosen = (chosen - (chosen * w).sum(-1, true) / total) / total;
    }
    at::Tensor ds = at::zeros_like(s).scatter_(-1, picks, chosen);
    if (options_.score == RouterScore::softmax) {
      ds = s * (ds - (ds * s).sum(-1, true));
    } else {
      ds.mul_(s).mul_(1 - s);
    }
    return ds.to(call.inputs[0].scalar_type());
  }

  const RouterOptions options_;
};

// Which choices a limited capacity admits: of each sequence, an expert takes the first choices in order of
// position, then the second ones, and so on, until it is full (Lepikhin et al. 2021, "GShard", algorithm 1).
class Admit final : public OpType {
 public:
  explicit Admit(std::int64_t capacity, std::int64_t experts)
      : capacity_(capacity), experts_(experts) {}

  std::string kind() const override { return "admit"; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.differentiable = false;
    traits.backward_reads_input = {false};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const LocalDim& tokens = call.dims.at(op.inputs[0].dims[1]);
    at::Tensor picks = call.inputs[0];
    at::Tensor places;  // of the tokens as they lie
    if (tokens.runs.size() > 1) {
      std::vector<at::Tensor> runs;
      for (const Range& run : tokens.runs) {
        runs.push_back(at::arange(run.offset, run.offset + run.size, at::kLong));
      }
      places = at::cat(runs).to(picks.device());
      picks = picks.index_select(1, at::argsort(places));
    }
    const std::int64_t batch = picks.size(0), top = picks.size(2);
    // (batch, top, seq): all first choices before all second ones.
    const at::Tensor choices = picks.transpose(1, 2).reshape({batch, -1});
    const at::Tensor taken = at::one_hot(choices, experts_).cumsum(1);
    const at::Tensor rank = taken.gather(2, choices.unsqueeze(2)).squeeze(2);
    at::Tensor admitted = at::where(rank <= capacity_, choices, at::full_like(choices, -1))
                              .view({batch, top, -1})
                              .transpose(1, 2)
                              .contiguous();
    if (places.defined()) admitted = admitted.index_select(1, places);
    set_outputs(call, {admitted});
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int) const override {
    const std::int64_t picks = dims.count(op.inputs[0].dims);
    Cost cost;
    cost.executed = static_cast<double>(picks * experts_);
    cost.bytes = static_cast<double>(16 * picks * experts_);
    cost.workspace = 8 * picks * (2 * experts_ + 4);
    return cost;
  }

 private:
  const std::int64_t capacity_, experts_;
};

class InFp32 : public AutogradOp {
 public:
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    traits.fp32_outputs = {true};
    return traits;
  }
};

// logits, picks -> (load, batch, scores): of each sequence, how many choices fell on each expert, and the sum of
// its tokens' normalised affinities.
class BalanceStats final : public InFp32 {
 public:
  explicit BalanceStats(RouterScore score) : score_(score) {}
  std::string kind() const override { return "balance_stats"; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    at::Tensor s = affinities(inputs[0], score_);
    if (score_ == RouterScore::sigmoid) s = s / s.sum(-1, true);
    const at::Tensor chosen = at::one_hot(inputs[1], s.size(-1)).sum({1, 2}).to(s.scalar_type());
    return {at::stack({chosen, s.sum(1)})};
  }

 private:
  const RouterScore score_;
};

class BalanceLoss final : public InFp32 {
 public:
  explicit BalanceLoss(double factor) : factor_(factor) {}
  std::string kind() const override { return "balance_loss"; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    return {(inputs[0][0] * inputs[0][1]).sum() * factor_};
  }

 private:
  const double factor_;
};

class ZLoss final : public InFp32 {
 public:
  explicit ZLoss(double factor) : factor_(factor) {}
  std::string kind() const override { return "z_loss"; }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor logits = inputs[0].to(wide(inputs[0]));
    return {logits.logsumexp(-1).square().sum() * factor_};
  }

 private:
  const double factor_;
};

}  // namespace

OpTypePtr route(const RouterOptions& options) {
  return std::make_shared<Route>(options);
}
OpTypePtr admit(std::int64_t capacity, std::int64_t experts) {
  return std::make_shared<Admit>(capacity, experts);
}
OpTypePtr balance_stats(RouterScore score) {
  return std::make_shared<BalanceStats>(score);
}
OpTypePtr balance_loss(double factor) {
  return std::make_shared<BalanceLoss>(factor);
}
OpTypePtr z_loss(double factor) {
  return std::make_shared<ZLoss>(factor);
}

}  // namespace mw
