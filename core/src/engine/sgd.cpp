// Stochastic gradient descent with momentum and weight decay, as an optimizer of scripts.
#include "engine/optimizer.h"

namespace mw {

namespace {

class Sgd final : public Optimizer {
 public:
  explicit Sgd(const Values& values)
      : lr_(values.number("lr")),
        momentum_(values.number("momentum")),
        weight_decay_(values.number("weight_decay")),
        clip_(values.has("clip") ? values.number("clip") : 0) {}
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::vector<std::string> state_names() const override {
    return momentum_ == 0 ? std::vector<std::string>{} : std::vector<std::string>{"momentum"};
  }

 protected:
  // Without temporaries: the decay goes straight into whatever holds the update.
  void update(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state, double lr,
              std::int64_t) const override {
    if (momentum_ == 0) {
      if (weight_decay_ != 0) grad.add_(param, weight_decay_);
      param.add_(grad, -lr);
      return;
    }
    const at::Tensor& velocity =
        state.tensors[0];  // starts at zero: the first step's is the gradient
    velocity.mul_(momentum_).add_(grad);
    if (weight_decay_ != 0) velocity.add_(param, weight_decay_);
    param.add_(velocity, -lr);
  }

 private:
  double lr_, momentum_, weight_decay_, clip_;
};

class SgdKind final : public OptimizerKind {
 public:
  SgdKind() {
    options_.number("lr", "learning rate; a schedule starts from it")
        .at_least(0)
        .number("momentum", "decay of the running sum of updates")
        .fallback(0.0)
        .range(0, 1)
        .number("weight_decay", "added to the gradient, times the parameter")
        .fallback(0.0)
        .at_least(0)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  std::string name() const override { return "sgd"; }
  std::string doc() const override {
    return "Stochastic gradient descent, with momentum if asked.";
  }
  const Options& options() const override { return options_; }
  std::shared_ptr<const Optimizer> make(const Values& values, const std::string&,
                                        Problems&) const override {
    return std::make_shared<Sgd>(values);
  }

 private:
  Options options_;
};

}  // namespace

const OptimizerKind& sgd_kind() {
  static const SgdKind kind;
  return kind;
}

}  // namespace mw
