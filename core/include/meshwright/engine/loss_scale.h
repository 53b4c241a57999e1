// Loss scaling: backward starts from a factor instead of 1, so that small gradients do not vanish
// in fp16; the norm and the update divide it out again (Micikevicius et al. 2018, section 3.2). A
// step whose norm is not finite is left out on all ranks:
// parameters, states and the optimizer's count of steps stay.
#pragma once

#include <cstdint>
#include <memory>

namespace mw {

// How the factor goes on. Immutable; all ranks share one and call it alike,
// so that all have one factor.
class LossScale {
 public:
  virtual ~LossScale() = default;
  virtual double first() const = 0;
  // The factor of `step`, given that the step before had `scale` and overflowed or not. `good`: how
  // many steps in a row have not overflowed since the factor last changed. Called from any rank's
  // thread.
  virtual double next(std::int64_t step, double scale, bool overflowed,
                      std::int64_t good) const = 0;
};

// What a factor goes on from.
struct LossScalerState {
  double scale = 1;
  bool overflowed = false, begun = false;  // the last step did; there was one
  std::int64_t good = 0, left_out = 0;
};

// One rank's factor from step to step.
class LossScaler {
 public:
  // Without a policy the factor is 1, and no step is left out.
  explicit LossScaler(std::shared_ptr<const LossScale> policy);
  // Begins a step. True if what the gradients of the step before left behind (a hook's errors) must
  // be dropped, since they overflowed or had another factor.
  bool begin(std::int64_t step);
  // After the norm of all gradients, still times the factor, is known. Returns the true one.
  double end(double scaled_norm);
  double scale() const { return state_.scale; }
  bool active() const { return policy_ != nullptr; }
  bool overflowed() const { return state_.overflowed; }      // this step is left out
  std::int64_t left_out() const { return state_.left_out; }  // steps so far
  // Between two steps.
  const LossScalerState& state() const { return state_; }
  void go_on_from(const LossScalerState& state) { state_ = state; }

 private:
  std::shared_ptr<const LossScale> policy_;
  LossScalerState state_;
};

}  // namespace mw
