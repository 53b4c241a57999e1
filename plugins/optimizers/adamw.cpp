// AdamW (Loshchilov and Hutter 2019).
//
// adamw { lr, betas = {0.9, 0.95}, eps = 1e-8, weight_decay = 0.1, clip = nil } decays every tensor
//   and equals ATen's fused kernel bit for bit.
#include <fmt/core.h>

#include "meshwright/engine/text.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {

namespace {

class AdamW final : public Optimizer, public ElementOp {
 public:
  static Options options() {
    return Options()
        .number("lr", "learning rate; a schedule starts from it")
        .at_least(0)
        .list("betas", "decay of the two running averages, {first, second}")
        .fallback(Json::array({0.9, 0.95}))
        .number("eps", "added to the root of the second average")
        .fallback(1e-8)
        .at_least(0)
        .number("weight_decay", "decoupled decay, on every tensor")
        .fallback(0.1)
        .at_least(0)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }
  explicit AdamW(const Values& values)
      : lr_(values.number("lr")),
        eps_(values.number("eps")),
        weight_decay_(values.number("weight_decay")),
        clip_(values.has("clip") ? values.number("clip") : 0) {
    const Json& betas = values.at("betas");
    bool valid = betas.is_array() && betas.size() == 2;
    for (std::size_t i = 0; valid && i < 2; ++i)
      valid = betas[i].is_number() && betas[i].get<double>() >= 0 && betas[i].get<double>() < 1;
    if (!valid) {
      throw Error(Stage::options, "option.value", "betas",
                  fmt::format("{} is not two numbers in [0, 1)", lua_text(betas)),
                  "for example betas = {0.9, 0.95}");
    }
    beta1_ = betas[0].get<double>();
    beta2_ = betas[1].get<double>();
  }
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::string name() const override { return "adamw"; }
  UpdateRule rule(int) const override {
    return {.states = {"exp_avg", "exp_avg_sq"}, .apply = this};
  }
  void run(const UpdateCall& call) const override {
    const at::Tensor &param = call.parameter, &grad = call.gradient;
    if (call.grad_scale != 1.0) grad.mul_(call.grad_scale);
    // The kernel reads the step, counted from 1, from an fp32 tensor on the parameter's device.
    const at::Tensor step =
        at::full({}, static_cast<double>(call.step + 1), param.options().dtype(at::kFloat));
    at::_fused_adamw_({param}, {grad}, {call.state.tensors[0]}, {call.state.tensors[1]}, {}, {step},
                      call.lr, beta1_, beta2_, weight_decay_, eps_, /*amsgrad=*/false,
                      /*maximize=*/false);
  }

 private:
  double lr_, beta1_ = 0, beta2_ = 0, eps_, weight_decay_, clip_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<AdamW>("adamw", "AdamW by ATen's fused kernel."));

}  // namespace mw
