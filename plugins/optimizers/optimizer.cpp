// The optimizers that are built in, and an update outside any program.
#include "optimizer.h"

namespace mw {

std::vector<Registration> built_in_optimizers() {
  return {adamw_optimizer, muon_optimizer, sgd_optimizer};
}

OptimizerState Optimizer::make_state(const at::Tensor& param, bool matrices) const {
  OptimizerState state;
  for (std::size_t i = 0, n = rule(matrices).states.size(); i < n; ++i)
    state.tensors.push_back(at::zeros_like(param, at::MemoryFormat::Contiguous));
  return state;
}

void Optimizer::step(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state,
                     double lr, std::int64_t step_index, double grad_scale) const {
  if (param.numel() > 0) rule(false).apply->run({param, grad, state, lr, step_index, grad_scale});
}

double clip_factor(double norm, double clip) {
  if (clip == 0) return 1.0;
  const double factor = clip / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;  // not std::min: a NaN must come through
}

}  // namespace mw
