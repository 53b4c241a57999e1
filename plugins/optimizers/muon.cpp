// Muon (Jordan 2024): momentum and orthogonalised updates for matrices of layers, AdamW for all
// else.
//
// muon { lr, momentum = 0.95, nesterov = true, weight_decay = 0.1, ns_steps = 5,
//   adjust_lr = "original", adamw = { lr, betas, eps }, clip = nil } does with matrices what
//   torch.optim.Muon does: v += (1 - momentum) (g - v);
//   d = g + momentum (v - g), or v without nesterov; p *= 1 - lr weight_decay;
//   p -= lr a orthogonalised(d), where a is sqrt(max(1, rows / columns)) ("original") or
//   0.2 sqrt(max(rows, columns)) ("match_rms_adamw"; Liu et al. 2025). AdamW has a rate that keeps
//   its ratio to Muon's.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {

namespace {

// Updates the average of gradients, and makes the gradient what is orthogonalised.
class Momentum final : public ElementOp {
 public:
  Momentum(double decay, bool nesterov) : decay_(decay), nesterov_(nesterov) {}
  std::string name() const override { return "momentum"; }
  void run(const UpdateCall& call) const override {
    const at::Tensor &grad = call.gradient, &average = call.state.tensors.front();
    if (call.grad_scale != 1.0) grad.mul_(call.grad_scale);
    average.lerp_(grad, 1 - decay_);
    if (nesterov_) {
      grad.lerp_(average, decay_);
    } else {
      grad.copy_(average);
    }
  }

 private:
  double decay_;
  bool nesterov_;
};

// The coefficients of Newton-Schulz (Jordan 2024), and the least norm that a matrix is divided by.
constexpr double a = 3.4445, b = -4.7750, c = 2.0315, least_norm = 1e-7;

// Moves the singular values of each matrix of `stack` (matrices, rows, columns) towards 1, by
// `steps` steps of X <- a X + (b X X^T + c (X X^T)^2) X from X / |X| (Frobenius; at least 1e-7),
// Computes in the precision of `stack`, which
// is overwritten and may be what is returned.
at::Tensor orthogonalised(const at::Tensor& stack, int steps) {
  stack.div_(at::linalg_vector_norm(stack, 2, {{1, 2}}, /*keepdim=*/true).clamp_min_(least_norm));
  if (steps == 0 || stack.numel() == 0) return stack;
  // Takes the smaller of the two Gram matrices, as (X X^T) X = X (X^T X).
  const bool tall = stack.size(1) > stack.size(2);
  const std::int64_t least = tall ? stack.size(2) : stack.size(1);
  at::Tensor x = stack, next = at::empty_like(stack);
  at::Tensor gram = at::empty({stack.size(0), least, least}, stack.options());
  at::Tensor sum = at::empty_like(gram);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor turned = x.transpose(1, 2);
    at::bmm_out(gram, tall ? turned : x, tall ? x : turned);
    at::baddbmm_out(sum, gram, gram, gram, b, c);
    at::baddbmm_out(next, x, tall ? x : sum, tall ? sum : x, a, 1);
    std::swap(x, next);
  }
  return x;
}

class Orthogonalise final : public MatrixOp {
 public:
  explicit Orthogonalise(int steps) : steps_(steps) {}
  std::string name() const override { return "orthogonalise"; }
  at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>&) const override {
    return orthogonalised(stack, steps_);
  }
  // A step takes 4 m^2 n + 2 m^3 FLOPs for a matrix of m by n, m <= n. Two stacks take turns; there
  // are two squares.
  Cost cost(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
            int element) const override {
    const std::int64_t least = std::min(rows, columns);
    const auto m = static_cast<double>(least), n = static_cast<double>(std::max(rows, columns));
    Cost cost;
    cost.flops = static_cast<double>(matrices) * steps_ * (4 * m * m * n + 2 * m * m * m);
    cost.gemms = 3 * steps_;
    cost.in_place = steps_ % 2 == 0;
    cost.workspace = element * matrices * 2 * least * least;
    if (cost.in_place) cost.workspace += element * matrices * rows * columns;
    return cost;
  }

  int gram_steps() const override { return steps_; }
  // The trace of the first Gram matrix is the square of the norm by which orthogonalised() divides.
  at::Tensor gram_step(int step, const at::Tensor& part, const at::Tensor& gram,
                       bool rows_are_cut) const override {
    at::Tensor norm;
    if (step == 0) {
      norm = gram.diagonal(0, 1, 2).sum(1).sqrt().clamp_min_(least_norm).view({-1, 1, 1});
      gram.div_(norm.square());
    }
    const at::Tensor sum = at::baddbmm(gram, gram, gram, b, c);
    const at::Tensor made =
        at::baddbmm(part, rows_are_cut ? part : sum, rows_are_cut ? sum : part, a, 1);
    return step == 0 ? made.div_(norm) : made;
  }
  Cost gram_step_cost(std::int64_t matrices, std::int64_t n, std::int64_t others,
                      int element) const override {
    const auto m = static_cast<double>(n);
    Cost cost;
    cost.flops =
        static_cast<double>(matrices) * 2 * (m * m * static_cast<double>(others) + m * m * m);
    cost.gemms = 2;
    cost.in_place = false;
    cost.workspace = element * matrices * n * n;
    return cost;
  }

 private:
  int steps_;
};

class Apply final : public ElementOp {
 public:
  Apply(double weight_decay, bool match_rms) : weight_decay_(weight_decay), match_rms_(match_rms) {}
  std::string name() const override { return "apply"; }
  void run(const UpdateCall& call) const override {
    const auto m = static_cast<double>(call.rows), n = static_cast<double>(call.columns);
    const double factor =
        match_rms_ ? 0.2 * std::sqrt(std::max(m, n)) : std::sqrt(std::max(1.0, m / n));
    call.parameter.mul_(1 - call.lr * weight_decay_).add_(call.gradient, -call.lr * factor);
  }

 private:
  double weight_decay_;
  bool match_rms_;
};

// The options of `adamw`, for all but matrices.
const Options& others_options() {
  static const Options options =
      Options()
          .number("lr", "learning rate of all but matrices; Muon's lr if left out")
          .optional()
          .at_least(0)
          .list("betas", "decay of the two running averages, {first, second}")
          .fallback(Json::array({0.9, 0.95}))
          .number("eps", "added to the root of the second average")
          .fallback(1e-8)
          .at_least(0);
  return options;
}

std::shared_ptr<const Optimizer> make_others(const Values& values) {
  Problems problems;
  Json given = values.at("adamw");
  // Lua's {} may be an array or an object
  if (given.is_array() && given.empty()) given = Json::object();
  const Values own = others_options().read(given, values.path("adamw"), problems);
  const double lr = values.number("lr");
  if (lr == 0) {
    problems.add(Stage::options, "option.range", "lr",
                 "0 is no rate: AdamW's follows the schedule in proportion to it",
                 "for example lr = 0.02");
  }
  problems.throw_if_any();
  const Json all{{"lr", own.has("lr") ? own.at("lr") : Json(lr)},
                 {"betas", own.at("betas")},
                 {"eps", own.at("eps")},
                 {"weight_decay", values.at("weight_decay")}};
  try {
    return make<Optimizer>(values.catalog().find(Kind::optimizer, "adamw"), Values(all));
  } catch (const Error& error) {
    std::vector<Problem> found = error.problems();
    for (Problem& problem : found) problem.key = "adamw." + problem.key;
    throw Error(std::move(found));
  }
}

MatrixRanks matrix_ranks(const std::string& name) {
  return name == "owner"    ? MatrixRanks::owner
         : name == "shards" ? MatrixRanks::shards
                            : MatrixRanks::every;
}

class Muon final : public Optimizer {
 public:
  static Options options() {
    return Options()
        .number("lr", "learning rate of matrices; a schedule starts from it")
        .at_least(0)
        .number("momentum", "decay of the running average of gradients")
        .fallback(0.95)
        .range(0, 0.9999)
        .boolean("nesterov", "whether the update looks ahead, between gradient and average")
        .fallback(true)
        .number("weight_decay", "decoupled decay, on every tensor")
        .fallback(0.1)
        .at_least(0)
        .integer("ns_steps", "Newton-Schulz steps that orthogonalise an update")
        .fallback(5)
        .range(1, 100)
        .choice("adjust_lr", {"original", "match_rms_adamw"},
                "what lr is multiplied by: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, "
                "columns)), with which AdamW's lr and decay serve")
        .fallback("original")
        .choice(
            "matrices", {"every", "owner", "shards"},
            "which ranks orthogonalise a matrix: every one that updates elements of it, one owner "
            "(matrices shared out by cost), or those over which tp cuts it, each its own part, by "
            "sums of Gram matrices")
        .fallback("every")
        .table("adamw", "of embedding, head, norms and biases: { lr = Muon's, betas, eps }")
        .fallback(Json::object())
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit Muon(const Values& values)
      : others_(make_others(values)),
        lr_(values.number("lr")),
        clip_(values.has("clip") ? values.number("clip") : 0),
        matrices_(matrix_ranks(values.text("matrices"))),
        momentum_(values.number("momentum"), values.flag("nesterov")),
        orthogonalise_(values.int32("ns_steps")),
        apply_(values.number("weight_decay"), values.text("adjust_lr") == "match_rms_adamw") {}
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  int groups() const override { return 2; }
  std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const override {
    return matrices_apart(parameters);
  }
  UpdateRule rule(int group) const override {
    if (group == 1)
      return {.states = {"momentum_buffer"},
              .direction = &momentum_,
              .whole = &orthogonalise_,
              .apply = &apply_,
              .matrices = matrices_};
    UpdateRule others = others_->rule(0);
    others.lr_scale = others_->lr() / lr_;
    return others;
  }

 private:
  std::shared_ptr<const Optimizer> others_;
  double lr_, clip_;
  const MatrixRanks matrices_;
  const Momentum momentum_;
  const Orthogonalise orthogonalise_;
  const Apply apply_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<Muon>(
    "muon", "Muon for the matrices of layers, orthogonalised whole; AdamW for all else."));

}  // namespace mw
