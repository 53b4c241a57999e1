// Muon (Jordan 2024) as an optimizer of scripts: momentum and orthogonalised updates for
// matrices of layers, AdamW for all else.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "engine/optimizer.h"

namespace mw {

namespace {

class Muon final : public Optimizer, public MatrixOptimizer {
 public:
  Muon(const Values& values, std::shared_ptr<const Optimizer> others)
      : others_(std::move(others)),
        lr_(values.number("lr")),
        momentum_(values.number("momentum")),
        weight_decay_(values.number("weight_decay")),
        clip_(values.has("clip") ? values.number("clip") : 0),
        ns_steps_(values.int32("ns_steps")),
        nesterov_(values.flag("nesterov")),
        match_rms_(values.text("adjust_lr") == "match_rms_adamw") {}
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  const MatrixOptimizer* matrices() const override { return this; }
  int ns_steps() const override { return ns_steps_; }
  // Of matrices one tensor, of all else AdamW's.
  std::vector<std::string> state_names() const override { return others_->state_names(); }
  std::vector<std::string> matrix_state_names() const override { return {"momentum_buffer"}; }

  void direct(const at::Tensor& grad, OptimizerState& state, double grad_scale) const override {
    if (grad_scale != 1.0) grad.mul_(grad_scale);
    const at::Tensor& momentum = state.tensors.front();
    momentum.lerp_(grad, 1 - momentum_);
    if (nesterov_) {
      grad.lerp_(momentum, momentum_);
    } else {
      grad.copy_(momentum);
    }
  }

  void step(const at::Tensor& param, const at::Tensor& turn, double lr, std::int64_t rows,
            std::int64_t columns) const override {
    const auto m = static_cast<double>(rows), n = static_cast<double>(columns);
    const double factor =
        match_rms_ ? 0.2 * std::sqrt(std::max(m, n)) : std::sqrt(std::max(1.0, m / n));
    param.mul_(1 - lr * weight_decay_).add_(turn, -lr * factor);
  }

 protected:
  void update(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state, double lr,
              std::int64_t step_index) const override {
    others_->step(param, grad, state, lr * (others_->lr() / lr_), step_index);
  }

 private:
  std::shared_ptr<const Optimizer> others_;
  double lr_, momentum_, weight_decay_, clip_;
  int ns_steps_;
  bool nesterov_, match_rms_;
};

// AdamW's own, beside the matrices.
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

class MuonKind final : public OptimizerKind {
 public:
  MuonKind() {
    options_.number("lr", "learning rate of matrices; a schedule starts from it")
        .at_least(0)
        .number("momentum", "decay of the running average of gradients")
        .fallback(0.95)
        .range(0, 1)
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
        .table("adamw", "of embedding, head, norms and biases: { lr = Muon's, betas, eps }")
        .fallback(Json::object())
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  std::string name() const override { return "muon"; }
  std::string doc() const override {
    return "Muon for the matrices of layers, orthogonalised whole; AdamW for all else.";
  }
  const Options& options() const override { return options_; }
  std::shared_ptr<const Optimizer> make(const Values& values, const std::string& path,
                                        Problems& problems) const override {
    Problems found;
    Json given = values.at("adamw");
    if (given.is_array() && given.empty()) given = Json::object();  // Lua's {} may be either
    const Values own = others_options().read(given, path + ".adamw", found);
    const double lr = values.number("lr");
    if (lr == 0) {
      found.add(
          Stage::options, "option.range", path + ".lr",
          fmt::format("{}.lr is 0: AdamW's rate follows the schedule in proportion to it", path),
          "for example lr = 0.02");
    }
    std::shared_ptr<const Optimizer> others;
    if (found.empty()) {
      const Json all{{"lr", own.has("lr") ? own.at("lr") : Json(lr)},
                     {"betas", own.at("betas")},
                     {"eps", own.at("eps")},
                     {"weight_decay", values.at("weight_decay")}};
      others = adamw_kind().make(Values(all), path + ".adamw", found);
    }
    problems.add(found);
    return found.empty() ? std::make_shared<Muon>(values, std::move(others)) : nullptr;
  }

 private:
  Options options_;
};

}  // namespace

const OptimizerKind& muon_kind() {
  static const MuonKind kind;
  return kind;
}

}  // namespace mw
