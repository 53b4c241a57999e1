// Compares each step of a distributed plan (the mix) by itself: one rank follows the mix, computes
// gradients from the mix's own parameters, and updates by the mix's own gradients. So rounding in
// one step does not reach the next, even where an optimizer magnifies it.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/observe.h"
#include "check/verify.h"

namespace mw {

// A loss or gradient norm below its floor counts as the floor in relative errors. In a model that
// has learnt its data, either is hardly more than rounding, and that is the rounding of numbers of
// the order of 1, however small the result.
constexpr double loss_floor = 1e-6, norm_floor = 1e-6;

// What a run did, by step; whole tensors by the parameter's name.
struct RunRecord {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, at::Tensor>> gradients,
      parameters;  // parameters: after the update
};

// The first place where a run is not finite. If there is none, `step` is the number of its steps,
// and `what` is empty.
struct NotFinite {
  std::int64_t step = 0;
  // True: the loss or the gradient norm is not finite; false: a parameter after the update.
  bool before_update = false;
  std::string what;  // "the loss of step 1", "embedding.weight after the update of step 0"
};
NotFinite first_not_finite(const RunRecord& record);
// The place in one step, before or after its update; nothing where all is finite. Of several
// parameters it is the first by name.
std::optional<NotFinite> not_finite_before(std::int64_t step, double loss, double norm);
std::optional<NotFinite> not_finite_after(std::int64_t step,
                                          const std::map<std::string, at::Tensor>& parameters);

// relative() over the elements that are finite; infinity if different elements of the two are
// finite.
double relative_where_finite(const at::Tensor& x, const at::Tensor& reference, double floor);

// Runs the plan, and then the rank that follows it. If all steps agree, sets the outcome's equal or
// undecided, errors, steps, not_finite, followed and apart; else only parted_step, parted_update
// and parted_error.
void follow(const RunSetup& experiment, const Plan& plan, const Plan& one, std::int64_t steps,
            const std::atomic<bool>* stop, VerifyOutcome& outcome);

}  // namespace mw
