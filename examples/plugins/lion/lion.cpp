// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): each element moves by
// the sign of a running average of gradients, so that one state suffices, where Adam has two.
#include <ATen/ATen.h>

#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace {

class Lion final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() {
    return mw::Options()
        .number("lr", "learning rate, a tenth of what Adam takes; a schedule starts from it")
        .at_least(0)
        .number("beta1", "weight of the average against the gradient, in the update")
        .fallback(0.9)
        .range(0, 0.999999)
        .number("beta2", "decay of the average")
        .fallback(0.99)
        .range(0, 1)
        .number("weight_decay", "decoupled decay, on every tensor")
        .fallback(0.0)
        .at_least(0)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit Lion(const mw::Values& values)
      : lr_(values.number("lr")),
        beta1_(values.number("beta1")),
        beta2_(values.number("beta2")),
        decay_(values.number("weight_decay")),
        clip_(values.has("clip") ? values.number("clip") : 0) {}

  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::string name() const override { return "lion"; }
  mw::UpdateRule rule(int) const override { return {.states = {"average"}, .apply = this}; }

  // In place, without a tensor of the parameter's size: the prediction counts none. The gradient's
  // is ours to overwrite. With c = beta1 m + (1 - beta1) g, the average's new value beta2 m + (1 -
  // beta2) g is beta2 m + (1 - beta2) / (1 - beta1) (c - beta1 m).
  void run(const mw::UpdateCall& call) const override {
    const at::Tensor &parameter = call.parameter, &gradient = call.gradient;
    const at::Tensor& average = call.state.tensors[0];
    const double share = (1 - beta2_) / (1 - beta1_);
    gradient.mul_((1 - beta1_) * call.grad_scale).add_(average, beta1_);
    average.mul_(beta2_ - share * beta1_).add_(gradient, share);
    gradient.sign_();
    if (decay_ != 0) parameter.mul_(1 - call.lr * decay_);
    parameter.add_(gradient, -call.lr);
  }

 private:
  double lr_, beta1_, beta2_, decay_, clip_;
};

}  // namespace

MESHWRIGHT_PLUGIN("lion", "1.0.0", "the sign of a running average of gradients (Chen et al. 2023)",
                  mw::optimizer<Lion>())
