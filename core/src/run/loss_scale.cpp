// The bookkeeping of a rank's loss scale from step to step, and of steps that were left out.
#include "meshwright/engine/loss_scale.h"

#include <cmath>
#include <utility>

namespace mw {
LossScaler::LossScaler(std::shared_ptr<const LossScale> policy) : policy_(std::move(policy)) {}

bool LossScaler::begin(std::int64_t step) {
  const bool had_no_labels = std::exchange(state_.had_no_labels, false);
  if (policy_ == nullptr) return had_no_labels;
  const double before = state_.scale;
  state_.scale =
      state_.begun ? policy_->next(step, before, state_.overflowed, state_.good) : policy_->first();
  const bool anew = state_.begun && (state_.overflowed || state_.scale != before);
  if (anew) state_.good = 0;
  state_.begun = true;
  state_.overflowed = false;
  return anew || had_no_labels;
}

double LossScaler::end(double scaled_norm, bool has_labels) {
  const double norm = scaled_norm / state_.scale;
  state_.overflowed = policy_ != nullptr && !std::isfinite(norm);
  state_.had_no_labels = !has_labels;
  ++(state_.overflowed || !has_labels ? state_.left_out : state_.good);
  return norm;
}

}  // namespace mw
