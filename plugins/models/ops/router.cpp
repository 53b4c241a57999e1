// Routing: which experts a token chooses and with what weight,
// and the losses that keep the choice even.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/graph.h"
#include "meshwright/ops.h"
#include "token_order.h"

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
  OpClass op_class() const override { return OpClass::routing; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, false};
    traits.backward_reads_output = {false, true};
    traits.fp32_outputs = {true, false};
    traits.gradient_passes = {false, false};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const at::Tensor s = affinities(call.inputs[0], options_.score);
    const std::int64_t top = call.dims.at(op.output_dims[1].back()).size;
    const at::Tensor picks = std::get<1>(ranked(s, call.inputs[1]).topk(top, -1));
    at::Tensor weights = s.gather(-1, picks);
    if (options_.normalise) weights.div_(sum_of(weights));
    set_outputs(call, {weights.mul_(options_.scale), picks});
  }

  void backward(const Op& op, OpCall& call) const override {
    if (wanted(call, 0)) deliver(call, 0, logit_gradient(call));
    if (!wanted(call, 1)) return;
    deliver(call, 1,
            loads(op, call).to(call.grad_inputs.size() > 1 && call.grad_inputs[1].defined()
                                   ? call.grad_inputs[1].scalar_type()
                                   : wide(call.inputs[0])));
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t logits = dims.count(op.inputs[0].dims);
    const std::int64_t picks = dims.count(op.output_dims[1]);
    const std::int64_t tokens = picks / dims.at(op.output_dims[1].back()).size;
    const std::int64_t wide = wide_element(element);
    Cost cost;
    cost.executed = 8.0 * static_cast<double>(logits);
    cost.bytes = static_cast<double>(logits * (element + 2 * wide));
    cost.workspace = 2 * logits * wide;
    if (piece == Piece::forward && limited()) {
      cost.bytes += static_cast<double>(2 * logits * wide);
      const std::int64_t per_group = best_of_group(logits / tokens) * (wide + 8) + wide;
      *cost.workspace +=
          std::max<std::int64_t>(0, tokens * options_.groups * per_group - picks * (wide + 8));
    }
    if (piece != Piece::forward) {
      const std::int64_t of_weights = options_.normalise ? logits + 3 * picks + 2 * tokens : 0;
      cost.workspace = std::max(of_weights, 3 * logits + picks) * wide - logits * element;
    }
    return cost;
  }

 private:
  bool limited() const { return options_.group_top < options_.groups; }

  // How many of this rank's tokens each expert computes. If experts choose, all experts have the
  // same number: of a sequence's choices, as large a share as this rank has of its tokens.
  at::Tensor loads(const Op& op, const OpCall& call) const {
    const std::int64_t experts = call.dims.at(op.inputs[1].dims[0]).size;
    const at::Tensor& picks = call.outputs[1];
    if (options_.experts_take == 0) return counts_of(picks.flatten(), experts);
    const std::int64_t sequence = call.dims.at(op.inputs[0].dims[1]).global;
    const double take = static_cast<double>(options_.experts_take * picks.size(0) * picks.size(1)) /
                        static_cast<double>(sequence);
    return at::full({experts}, take, picks.options().dtype(at::kDouble));
  }

  // How many experts of a group say how high the group stands.
  std::int64_t best_of_group(std::int64_t experts) const {
    const std::int64_t most = options_.score == RouterScore::softmax ? 1 : 2;
    return std::min(most, experts / options_.groups);
  }

  // What a token chooses by: affinity + bias, lowest in the groups that the token must not choose.
  at::Tensor ranked(const at::Tensor& s, const at::Tensor& bias) const {
    at::Tensor rank = s + bias.to(s.scalar_type());
    if (!limited()) return rank;
    const at::Tensor grouped = rank.unflatten(-1, {options_.groups, -1});
    const at::Tensor heights = std::get<0>(grouped.topk(best_of_group(s.size(-1)), -1)).sum(-1);
    const at::Tensor chosen = std::get<1>(heights.topk(options_.group_top, -1));
    const at::Tensor others = at::ones_like(heights, at::kBool).scatter_(-1, chosen, false);
    grouped.masked_fill_(others.unsqueeze(-1), -std::numeric_limits<double>::infinity());
    return rank;
  }

  static at::Tensor sum_of(const at::Tensor& weights) { return weights.sum(-1, true).add_(1e-20); }

  at::Tensor logit_gradient(const OpCall& call) const {
    const at::Tensor s = affinities(call.inputs[0], options_.score);
    const at::Tensor& picks = call.outputs[1];
    at::Tensor chosen = call.grad_outputs[0].to(s.scalar_type()) * options_.scale;
    if (options_.normalise) {  // gradient of w / sum(w)
      const at::Tensor w = s.gather(-1, picks), total = sum_of(w);
      chosen.sub_((chosen * w).sum(-1, true).div_(total)).div_(total);
    }
    at::Tensor ds = at::zeros_like(s).scatter_(-1, picks, chosen);
    if (options_.score == RouterScore::softmax) {
      ds = at::_softmax_backward_data(ds, s, -1, s.scalar_type());
    } else {
      ds = at::sigmoid_backward(ds, s);
    }
    return ds.to(call.inputs[0].scalar_type());
  }

  const RouterOptions options_;
};

// Finds the choices that a limited capacity admits: of each sequence, an expert takes the first
// choices in order of position, then the second ones, and so on, until it is full (Lepikhin et al.
// 2021, "GShard", algorithm 1). Given the weights of the choices, an expert takes those with the
// largest ones (Zhou et al. 2022, "Mixture-of-Experts with Expert Choice Routing", section 3.2).
class Admit final : public OpType {
 public:
  struct Options {
    std::int64_t capacity = 0;
    bool places = false;  // the last input has the places of tokens in their rows (batch, seq)
    friend bool operator==(const Options&, const Options&) = default;
  };
  explicit Admit(const Options& options) : of_(options) {}

  std::string kind() const override { return "admit"; }

  OpTraits traits(const Op&) const override { return without_gradient(1); }
  // Capacity is a row's, whatever its documents are.
  std::optional<Op> in_documents(const Op& op, int, Graph&) const override { return op; }
  std::optional<Op> in_parted_documents(const Op& op, int places, int, Graph&) const override {
    Op form = op;
    form.type = only_of<Admit>(Options{of_.capacity, true});
    form.inputs.push_back({places, {op.inputs[0].dims[0], op.inputs[0].dims[1]}});
    return form;
  }

  void forward(const Op& op, OpCall& call) const override {
    const TokenOrder order_of =
        of_.places ? TokenOrder(call.inputs.back())
                   : TokenOrder(call.dims.at(op.inputs[0].dims[1]), call.inputs[0]);
    const at::Tensor picks = order_of.sorted(call.inputs[0]);
    at::Tensor weights;
    if (by_weight(op)) weights = order_of.sorted(call.inputs[1]);
    const std::int64_t batch = picks.size(0), seq = picks.size(1), top = picks.size(2);
    // (batch, top, seq): all first choices before all second ones.
    const auto listed = [&](const at::Tensor& of) {
      return of.transpose(1, 2).reshape({batch, -1});
    };
    at::Tensor order;
    if (weights.defined()) order = listed(weights).argsort(/*stable=*/true, 1, /*descending=*/true);
    const at::Tensor admitted =
        first_of_each(listed(picks), order).view({batch, top, seq}).transpose(1, 2).contiguous();
    set_outputs(call, {order_of.as_they_lay(admitted)});
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int) const override {
    const Dims& choices = op.inputs[0].dims;
    const std::int64_t picks = dims.count(choices);
    const LocalDim& tokens = dims.at(choices[1]);
    Cost cost;
    cost.executed = static_cast<double>(picks) * std::log2(std::max<std::int64_t>(picks, 2));
    cost.bytes = static_cast<double>(8 * 8 * picks);
    cost.workspace = 8 * picks * (dims.at(choices[2]).size > 1 ? 4 : 3);
    if (tokens.runs.size() > 1) *cost.workspace += 8 * (picks + 2 * tokens.size);
    if (by_weight(op) || of_.places) cost.workspace.reset();
    return cost;
  }

 private:
  bool by_weight(const Op& op) const { return op.inputs.size() > (of_.places ? 2 : 1); }

  // choices (rows, choices): keeps, in each row, the first `capacity` of equal choices, in the
  // order of memory or in `before`; -1 for the others.
  at::Tensor first_of_each(const at::Tensor& choices, const at::Tensor& before) const {
    const at::Tensor given = before.defined() ? choices.gather(1, before) : choices;
    auto [sorted, order] = given.sort(/*stable=*/true, 1, /*descending=*/false);
    if (before.defined()) order = before.gather(1, order);
    const at::Tensor rank = at::searchsorted(sorted, sorted).neg_();
    rank.add_(at::arange(choices.size(1), choices.options()));
    sorted.masked_fill_(rank >= of_.capacity, -1);
    return at::empty_like(choices).scatter_(1, order, sorted);
  }

  const Options of_;
};

class InFp32 : public AutogradOp {
 public:
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    traits.fp32_outputs = {true};
    traits.gradients_apart = true;
    return traits;
  }
};

// picks, starts -> (batch, document_starts, scores): how many choices of each document, by the
// place of its first token, fell on each expert.
class ChoicesOfDocuments final : public OpType {
 public:
  std::string kind() const override { return "choices_of_documents"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = traits_without_reads(op);
    traits.differentiable = false;
    traits.fp32_outputs = {true};
    return traits;
  }
  // Sums do not depend on the order of tokens.
  std::optional<Op> in_parted_documents(const Op& op, int, int, Graph&) const override {
    return op;
  }
  void forward(const Op& op, OpCall& call) const override {
    const Dims& made = op.output_dims[0];
    const std::int64_t experts = call.dims.at(made[2]).size, starts = call.dims.at(made[1]).size;
    const at::Tensor cells = (call.inputs[1].unsqueeze(-1) * experts + call.inputs[0]).flatten(1);
    const auto type = call.real == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor one = at::ones({1, 1}, cells.options().dtype(type));
    set_outputs(call, {at::zeros({cells.size(0), starts * experts}, one.options())
                           .scatter_add_(1, cells, one.expand_as(cells))
                           .view({-1, starts, experts})});
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const std::int64_t choices = dims.count(op.inputs[0].dims);
    Cost cost;
    cost.bytes = static_cast<double>(24 * choices +
                                     2 * dims.count(op.output_dims[0]) * wide_element(element));
    cost.accelerator_workspace = 16 * choices;
    return cost;
  }
};

// logits, picks -> (load, batch, scores): for each sequence and expert, how many choices fell on
// the expert, and the sum of the tokens' normalised affinities. The form for documents also reads
// the choices of documents, and the places of documents. The products of its two numbers add up to
// the products of each document, times sequence / the document's length.
class BalanceStats final : public InFp32 {
 public:
  struct Options {
    RouterScore score = RouterScore::softmax;
    bool documents = false;
    friend bool operator==(const Options&, const Options&) = default;
  };
  explicit BalanceStats(const Options& options) : of_(options) {}
  std::string kind() const override { return "balance_stats"; }

  std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const override {
    const Dims& logits = op.inputs[0].dims;
    const Dim places("document_starts");
    graph.set_dim(places, graph.size(logits[1]), true, {}, "seq, as the places of documents");
    const Dims made{logits[0], places, logits[2]};
    const Use of_tokens{starts, {logits[0], logits[1]}};
    Op choices = op_beside(op, ".choices", only<ChoicesOfDocuments>(), {op.inputs[1], of_tokens},
                           {op.inputs[1].dims[2], places, logits[2]});
    const Graph::Output counted{"", made, Scalar::real, /*needs_grad=*/false};
    Op form = op;
    form.type = only_of<BalanceStats>(Options{of_.score, true});
    form.inputs.push_back({graph.add(std::move(choices), {counted})[0], made});
    form.inputs.push_back(of_tokens);
    form.whole.push_back(places);
    return form;
  }

  std::optional<Op> in_parted_documents(const Op& op, int, int, Graph&) const override {
    return op;
  }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    at::Tensor s = affinities(inputs[0], of_.score);
    if (of_.score == RouterScore::sigmoid) s = s / s.sum(-1, true);
    if (of_.documents) {
      const at::Tensor counts = inputs[2].to(s.scalar_type()),
                       own = counts.gather(1, inputs[3].unsqueeze(-1).expand_as(s)),
                       factor = counts.sum({1, 2}, true) / own.sum(-1, true);
      const double share = static_cast<double>(s.size(1)) /
                           static_cast<double>(dims.at(op.inputs[0].dims[1]).global);
      return {at::stack({at::full({s.size(0), s.size(2)}, share, s.options().requires_grad(false)),
                         (s * own * factor).sum(1)})};
    }
    const at::Tensor choices = inputs[1].flatten(1);
    const at::Tensor chosen =
        at::zeros({s.size(0), s.size(2)}, s.options())
            .scatter_add_(1, choices, at::ones({1, 1}, s.options()).expand_as(choices));
    return {at::stack({chosen, s.sum(1)})};
  }

 private:
  const Options of_;
};

// A loss's factor, and the number of tokens or sequences in a step by which it is divided; 0: not
// divided.
struct StepScaledFactor {
  double factor = 0;
  std::int64_t count = 0;
  double scale() const { return count > 0 ? factor / static_cast<double>(count) : factor; }
  std::vector<StepConstant> declared(const char* name) const {
    if (count == 0) return {};
    return {{name, static_cast<double>(count)}};
  }
  friend bool operator==(const StepScaledFactor&, const StepScaledFactor&) = default;
};

class BalanceLoss final : public InFp32 {
 public:
  explicit BalanceLoss(const StepScaledFactor& of) : of_(of) {}
  std::string kind() const override { return "balance_loss"; }
  std::vector<StepConstant> constants(const Op&) const override {
    return of_.declared("sequences");
  }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    return {(inputs[0][0] * inputs[0][1]).sum() * of_.scale()};
  }

 private:
  const StepScaledFactor of_;
};

class ZLoss final : public InFp32 {
 public:
  explicit ZLoss(const StepScaledFactor& of) : of_(of) {}
  std::string kind() const override { return "z_loss"; }
  std::vector<StepConstant> constants(const Op&) const override { return of_.declared("tokens"); }
  std::vector<at::Tensor> compute(const Op&, const LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor logits = inputs[0].to(wide(inputs[0]));
    return {logits.logsumexp(-1).square().sum() * of_.scale()};
  }

 private:
  const StepScaledFactor of_;
};

}  // namespace

OpTypePtr route(const RouterOptions& options) {
  return only_of<Route>(options);
}
OpTypePtr admit(std::int64_t capacity, std::int64_t) {
  return only_of<Admit>(Admit::Options{capacity});
}
OpTypePtr balance_stats(RouterScore score) {
  return only_of<BalanceStats>(BalanceStats::Options{score});
}
OpTypePtr balance_loss(double factor, std::int64_t sequences) {
  return only_of<BalanceLoss>(StepScaledFactor{factor, sequences});
}
OpTypePtr z_loss(double factor, std::int64_t tokens) {
  return only_of<ZLoss>(StepScaledFactor{factor, tokens});
}

}  // namespace mw
