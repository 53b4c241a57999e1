// Adds the parts of models with experts to a graph: router, dispatch, the experts' linears,
// combine, and the losses that balance them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "meshwright/builder.h"
#include "meshwright/optimizer.h"

namespace mw {
namespace {

// Moves a router's bias by the load of each expert: by `rate` up where tokens of the step chose the
// expert less often than `mean`, and down where they chose it more often (Wang et al. 2024,
// "Auxiliary-Loss-Free Load Balancing", algorithm 1).
class EvenOut final : public ElementOp {
 public:
  EvenOut(double mean, double rate) : mean_(mean), rate_(rate) {}
  std::string name() const override { return "even out"; }
  void run(const UpdateCall& call) const override {
    const at::Tensor step = call.gradient.neg().add_(mean_).sign_();
    call.parameter.add_(step.to(call.parameter.scalar_type()), rate_);
  }

 private:
  double mean_, rate_;
};

}  // namespace

// How many choices of a sequence an expert takes at most.
std::int64_t Builder::room(const ExpertOptions& options) const {
  const auto choices = static_cast<double>(graph.size("seq") * options.top);
  const double even = choices / static_cast<double>(graph.size("experts"));
  const double most = options.experts_choose ? static_cast<double>(graph.size("seq")) : choices;
  return static_cast<std::int64_t>(
      std::min(std::ceil(options.capacity.value_or(1) * even - 1e-9), most));
}

void Builder::expert_dims(std::int64_t experts, const ExpertOptions& options) {
  dim("experts", experts, true, {}, "experts");
  dim("scores", experts, true, {}, "experts, as the router has them: whole for each token");
  dim("top", options.choices(experts), true, {}, options.experts_choose ? "experts" : "top_k");
  dim("load", 2, true, {}, "what the balancing loss sums of each expert");
  double share = static_cast<double>(options.top) / static_cast<double>(experts);
  if (options.experts_choose) {
    share = static_cast<double>(room(options)) / static_cast<double>(graph.size("seq"));
  } else if (options.capacity) {  // only this part of the choices is admitted
    const auto choices = static_cast<double>(graph.size("seq") * options.top);
    const double admitted = static_cast<double>(room(options)) * static_cast<double>(experts);
    share *= std::min(1.0, admitted / choices);
  }
  if (!graph.sparse.dims.empty() && graph.sparse.share != share) {
    throw Error(Stage::options, "option.conflict", "",
                "experts of two layers differ in capacity: a model has one",
                "give all layers the same capacity");
  }
  graph.sparse = {{"experts", "batch", "seq"}, share};
}

std::pair<int, int> Builder::choose_experts(const std::string& name, int logits, int bias,
                                            const RouterOptions& options) {
  const Dims chosen{"batch", "seq", "top"};
  const std::vector<int> both =
      append(op(name, mw::route(options), {use(logits), use(bias)}, {"scores", "top"}),
             {{name + ".weights", chosen}, {name + ".picks", chosen, Scalar::index, false}});
  return {both[0], both[1]};
}

int Builder::admit(const std::string& name, int picks, int weights, std::int64_t capacity) {
  std::vector<Use> inputs{use(picks)};
  if (weights >= 0) inputs.push_back(use(weights));
  return append(
      op(name, mw::admit(capacity, graph.size("experts")), std::move(inputs), {"seq", "top"}),
      {{"", dims(picks), Scalar::index, false}})[0];
}

void Builder::balance(const std::string& prefix, int logits, int picks,
                      const ExpertOptions& options) {
  const auto experts = static_cast<double>(graph.size("experts")),
             top = static_cast<double>(options.top),
             length = static_cast<double>(graph.size("seq"));
  if (options.balance == ExpertOptions::Balance::aux && options.aux_weight > 0) {
    // The balancing loss: alpha E / (k S) sum_i f_i sum_t P_i / S, the mean over a step's
    // sequences.
    const double factor = options.aux_weight * experts / (top * length * length);
    const std::int64_t sequences = tokens_per_step_ / graph.size("seq");
    const std::string name = prefix + ".balance";
    const int stats = append(op(name + ".stats", balance_stats(options.router.score),
                                {use(logits), use(picks)}, {"scores", "top", "load"}),
                             {{"", {"load", "batch", "scores"}}})[0];
    graph.other_losses.push_back(
        append(op(name, mw::balance_loss(factor, sequences), {use(stats)}, {"scores", "load"}),
               {{"", {}}})[0]);
  }
  if (options.z_weight > 0) {
    graph.other_losses.push_back(
        append(op(prefix + ".z_loss", mw::z_loss(options.z_weight, tokens_per_step_), {use(logits)},
                  {"scores"}),
               {{"", {}}})[0]);
  }
}

Builder::Routed Builder::route(const std::string& prefix, int x, const ExpertOptions& options,
                               const ExpertNames& names) {
  // The rows of a layer's experts are counted once (OpCall::rows).
  if (routed_layer_ == layer) {
    throw Error(Stage::options, "model.twice", "",
                fmt::format("{}: a layer has one router, and this is its second", prefix),
                "put it into a layer of its own: for _ in m:layers(2) do …");
  }
  routed_layer_ = layer;
  const double even = static_cast<double>(tokens_per_step_) * static_cast<double>(options.top) /
                      static_cast<double>(graph.size("experts"));
  const double rate = options.balance == ExpertOptions::Balance::bias ? options.bias_rate : 0;
  const std::string name = prefix + ".router";
  const int weight =
      parameter(name + ".weight", {"scores", dims(x).back()}, normal_weights, names.router);
  claim_name(name + ".bias", "a parameter");
  HfName bias_name = names.bias;
  if (bias_name.name.empty()) bias_name.name = name + ".bias";
  std::shared_ptr<const ElementOp> evens;
  if (rate != 0 && !frozen) evens = std::make_shared<EvenOut>(even, rate);
  const int bias = graph.add_counter(name + ".bias", {"scores"}, std::move(evens), bias_name);
  int logit_bias = -1;
  if (options.logit_bias)
    logit_bias = parameter(name + ".logit_bias", {"scores"}, {Init::Kind::zeros, 0},
                           bias_beside(names.router));
  int read = x;
  if (options.jitter > 0)
    read =
        map(name + ".jitter",
            fmt::format("a * (1 + training() * {} * (2 * uniform(1) - 1))", options.jitter), {x});
  int logits = linear(name, read, weight, logit_bias);
  if (options.noise > 0)
    logits = map(name + ".noise", fmt::format("a + {} * normal()", options.noise), {logits});
  RouterOptions router = options.router;
  if (options.experts_choose) router.experts_take = room(options);
  auto [weights, picks] = choose_experts(prefix + ".route", logits, bias, router);
  balance(prefix, logits, picks, options);
  if (options.capacity || options.experts_choose)
    picks = admit(prefix + ".admit", picks, options.experts_choose ? weights : -1, room(options));
  const std::string sent = prefix + ".dispatch";
  const std::vector<int> made_rows =
      append(op(sent, mw::dispatch(), {use(x), use(picks)}, {"top"}),
             {{sent + ".rows", {"experts", "batch", "seq", dims(x).back()}},
              {sent + ".places", {"experts", "batch", "seq"}, Scalar::index, false}});
  const int weighs = append(
      op(sent + ".weights", mw::dispatch_weights(), {use(weights), use(made_rows[1])}, {"top"}),
      {{"", dims(made_rows[1])}})[0];
  return {made_rows[0], made_rows[1], weighs};
}

int Builder::expert_linear(const std::string& name, int rows, Dim to, HfName hf,
                           const std::optional<HfName>& bias, int weights) {
  const auto refuse = [&](int value, const char* what) {
    throw Error(Stage::options, "model.dims", "",
                fmt::format("{}: {} {} are not {}", name, graph.value(value).name,
                            text_of(dims(value)), what),
                "local rows, places, weights = x:route { … }");
  };
  Dims out = dims(rows);
  if (!graph.sparse.has(out) || out.size() != 4) refuse(rows, "rows of experts");
  if (weights >= 0 && !(graph.sparse.has(dims(weights)) && dims(weights).size() == 3))
    refuse(weights, "the weights of rows of experts");
  const Dim from = out.back();
  out.back() = to;
  if (hf.name.empty()) hf.name = name + ".weight";
  const int weight =
      parameter(name + ".weight", {"experts", to, from}, normal_weights, std::move(hf));
  Op linear = op(name, mw::expert_linear(), {use(rows), use(weight)});
  // The first linear of routed rows counts the tokens of each expert.
  const auto& ops = graph.ops();
  const int producer = graph.value(rows).producer;
  linear.counts_rows =
      producer >= 0 && ops[static_cast<std::size_t>(producer)].kind() == "dispatch";
  for (auto at = static_cast<std::size_t>(producer + 1); at < ops.size(); ++at) {
    if (ops[at].counts_rows && ops[at].inputs[0].value == rows) linear.counts_rows = false;
  }
  const int made = append(std::move(linear), {{"", out}})[0];
  if (!bias) return made;
  std::vector<Use> inputs{
      use(made), use(parameter(name + ".bias", {"experts", to}, {Init::Kind::zeros, 0}, *bias))};
  inputs[0].linear = inputs[1].additive = true;
  if (weights >= 0) inputs.push_back(use(weights));
  return append(op(name + ".with_bias", mw::expert_bias(), std::move(inputs)), {{"", out}})[0];
}

int Builder::combine(const std::string& name, int rows, int places) {
  std::vector<Use> inputs{use(rows), use(places)};
  inputs[0].linear = true;
  return append(op(name, mw::combine(graph.size("top")), std::move(inputs)),
                {{"", {"batch", "seq", dims(rows).back()}}})[0];
}

}  // namespace mw
