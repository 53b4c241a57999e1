// Loss scaling: backward starts from a factor instead of 1, so that small gradients do not vanish
// in fp16; the norm and the update divide it out again (Micikevicius et al. 2018, section 3.2). If
// the norm is not finite, all ranks leave the update out: parameters, optimizer state and the
// optimizer's count of steps stay as they are.
#pragma once

#include <cstdint>
#include <memory>

namespace mw {

// A policy for the loss scale (the factor). It is immutable and shared by all ranks, which make the
// same calls, so that they have the same factor.
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

// The state of a LossScaler, which checkpoints keep.
struct LossScalerState {
  double scale = 1;
  // Whether the last step overflowed, and whether there was a step yet.
  bool overflowed = false, begun = false;
  // Steps in a row without overflow since the scale last changed, and updates left out so far.
  std::int64_t good = 0, left_out = 0;
  bool had_no_labels = false;  // no label of the last step counted
};

// The loss scale of one rank, from step to step.
class LossScaler {
 public:
  // Without a policy the factor is 1, and only steps in which no label counts are left out.
  explicit LossScaler(std::shared_ptr<const LossScale> policy);
  // Begins a step. Returns true if state that depends on the last step's gradients (the error
  // feedback of a reduction hook) must be dropped, because they overflowed, had another scale, or
  // were those of no label.
  bool begin(std::int64_t step);
  // Ends a step, given the norm of all gradients, still scaled. Returns the unscaled norm.
  // `has_labels`: false in a step in which no label counts, whose update is left out too.
  double end(double scaled_norm, bool has_labels);
  double scale() const { return state_.scale; }
  bool active() const { return policy_ != nullptr; }
  bool overflowed() const { return state_.overflowed; }      // this step's update is left out
  std::int64_t left_out() const { return state_.left_out; }  // updates left out so far
  // To be called between two steps.
  const LossScalerState& state() const { return state_; }
  void go_on_from(const LossScalerState& state) { state_ = state; }

 private:
  std::shared_ptr<const LossScale> policy_;
  LossScalerState state_;
};

}  // namespace mw
