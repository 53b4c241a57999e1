// What all optimizers share: allocation of their state, gradient clipping, and the list that
// scripts choose from.
#include "engine/optimizer.h"

#include <algorithm>

namespace mw {
namespace {

std::vector<std::string> names_of(const Optimizer& optimizer, bool matrix) {
  return matrix && optimizer.matrices() ? optimizer.matrices()->matrix_state_names()
                                        : optimizer.state_names();
}

}  // namespace

std::int64_t Optimizer::bytes_per_element(at::ScalarType dtype, bool matrix) const {
  return static_cast<std::int64_t>(names_of(*this, matrix).size() * at::elementSize(dtype));
}

OptimizerState Optimizer::make_state(const at::Tensor& param, bool matrix) const {
  OptimizerState state;
  for (std::size_t i = 0, n = names_of(*this, matrix).size(); i < n; ++i)
    state.tensors.push_back(at::zeros_like(param, at::MemoryFormat::Contiguous));
  return state;
}

void Optimizer::step(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state,
                     double lr, std::int64_t step_index, double grad_scale) const {
  if (param.numel() == 0) return;  // a rank may own nothing of a small parameter
  if (grad_scale != 1.0) grad.mul_(grad_scale);
  update(param, grad, state, lr, step_index);
}

const std::vector<const OptimizerKind*>& optimizer_kinds() {
  static const std::vector<const OptimizerKind*> kinds{&adamw_kind(), &sgd_kind(), &muon_kind()};
  return kinds;
}

const OptimizerKind* find_optimizer_kind(const std::string& name) {
  for (const OptimizerKind* kind : optimizer_kinds())
    if (kind->name() == name) return kind;
  return nullptr;
}

double clip_factor(double norm, double clip) {
  if (clip == 0) return 1.0;
  const double factor = clip / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;  // not std::min: a NaN must come through
}

}  // namespace mw
