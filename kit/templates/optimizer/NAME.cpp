// The optimizer @NAME@: the update of one parameter after the other, element by element, so that it
// runs over any shard of them.
#include <ATen/ATen.h>

#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace {

// Gradient descent with a running average of the gradients.
class @CLASS@ final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() {
    return mw::Options()
        .number("lr", "learning rate; a schedule starts from it")
        .at_least(0)
        .number("beta", "decay of the running average")
        .fallback(0.9)
        .range(0, 1)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit @CLASS@(const mw::Values& values)
      : lr_(values.number("lr")),
        beta_(values.number("beta")),
        clip_(values.has("clip") ? values.number("clip") : 0) {}

  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::string name() const override { return "@NAME@"; }
  mw::UpdateRule rule(int) const override { return {.states = {"average"}, .apply = this}; }

  // In place, without tensors of the parameter's size: the prediction counts none.
  void run(const mw::UpdateCall& call) const override {
    const at::Tensor& average = call.state.tensors[0];
    average.mul_(beta_).add_(call.gradient, (1 - beta_) * call.grad_scale);
    call.parameter.add_(average, -call.lr);
  }

 private:
  double lr_, beta_, clip_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "gradient descent along a running average",
                  mw::optimizer<@CLASS@>())
