// Finds where NaN and Inf come from, for the error of a training that stops at a loss that is not
// finite.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>

#include "meshwright/engine/run.h"

namespace mw {

// Whether all elements are finite. Integers always are.
bool finite(const at::Tensor& tensor);

// "the output of layers.0.attention.q", "the gradient that reaches layers.0.attention.q".
std::string words_of_computed(const Instruction& instruction);
// "what the all-gather of layers.0.ffn.up brought".
std::string words_of_moved(const Instruction& instruction);

// After a step whose update was left out because its loss or norm is not finite
// (StepOutcome::not_finite): all ranks compute the step again, now looking at each tensor. The rank
// that meets a NaN or Inf first throws Error (run, "run.not-finite") with the step and the place.
// Updates nothing. If no rank meets one, all throw that error without a place, or
// "run.not-finite-once" if loss and norm are finite this time: then the machine has erred.
[[noreturn]] void throw_not_finite(RankRun& executor, std::int64_t step, const StepOutcome& done);

// Ends a run at a step whose loss or norm is not finite, before its update (throw_not_finite()).
class EndAtNotFinite : public RunObserver {
 public:
  void begin(RankRun& rank) override { rank.leave_out_not_finite(); }
  std::string name() const override { return "on_nan"; }
  void step(RankRun& rank, StepEnd& end) override {
    if (end.outcome.not_finite) throw_not_finite(rank, end.step, end.outcome);
  }
};

}  // namespace mw
