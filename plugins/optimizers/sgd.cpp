// Stochastic gradient descent with momentum and weight decay.
//
// sgd { lr, momentum = 0, weight_decay = 0, nesterov = false, clip = nil }:
//   g += weight_decay p, v = momentum v + g, p -= lr v; with nesterov p -= lr (g + momentum v), as
//   in torch.optim.SGD. The first step's v is the gradient. It keeps state only with momentum.
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {

namespace {

class Sgd final : public Optimizer, public ElementOp {
 public:
  static Options options() {
    return Options()
        .number("lr", "learning rate; a schedule starts from it")
        .at_least(0)
        .number("momentum", "decay of the running sum of updates")
        .fallback(0.0)
        .range(0, 0.9999)
        .number("weight_decay", "added to the gradient, times the parameter")
        .fallback(0.0)
        .at_least(0)
        .boolean("nesterov", "look ahead by the momentum (Sutskever et al. 2013)")
        .fallback(false)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit Sgd(const Values& values)
      : lr_(values.number("lr")),
        momentum_(values.number("momentum")),
        weight_decay_(values.number("weight_decay")),
        nesterov_(values.flag("nesterov")),
        clip_(values.has("clip") ? values.number("clip") : 0) {
    if (nesterov_ && momentum_ == 0)
      throw Error(Stage::options, "option.conflict", "nesterov",
                  "nesterov looks ahead by the momentum, and momentum is 0",
                  "momentum = 0.9, or leave nesterov out");
  }
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::string name() const override { return "sgd"; }
  UpdateRule rule(int) const override {
    UpdateRule rule{.apply = this};
    if (momentum_ != 0) rule.states = {"momentum"};
    return rule;
  }
  // Without temporaries: the decay goes straight into whatever holds the update.
  void run(const UpdateCall& call) const override {
    const at::Tensor &param = call.parameter, &grad = call.gradient;
    if (call.grad_scale != 1.0) grad.mul_(call.grad_scale);
    if (momentum_ == 0) {
      if (weight_decay_ != 0) grad.add_(param, weight_decay_);
      param.add_(grad, -call.lr);
      return;
    }
    // The velocity starts at zero: in the first step it becomes the gradient.
    const at::Tensor& velocity = call.state.tensors[0];
    velocity.mul_(momentum_).add_(grad);
    if (weight_decay_ != 0) velocity.add_(param, weight_decay_);
    if (nesterov_) {
      if (weight_decay_ != 0) grad.add_(param, weight_decay_);
      param.add_(grad, -call.lr);
    }
    param.add_(velocity, nesterov_ ? -call.lr * momentum_ : -call.lr);
  }

 private:
  double lr_, momentum_, weight_decay_;
  bool nesterov_;
  double clip_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<Sgd>("sgd",
                                       "Stochastic gradient descent, with momentum if asked."));

}  // namespace mw
