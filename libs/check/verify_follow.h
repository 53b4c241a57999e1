// One rank that follows a mix, step by step: its gradients of the mix's own parameters, and what
// its optimizer makes of the mix's own gradients. What rounding does to one step does not reach the
// next, so each step can be compared where an optimizer magnifies rounding.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/observe.h"
#include "check/verify.h"

namespace mw {

// Below these sizes of loss and gradient norm errors are measured as if against these. A model that
// has learnt its data leaves hardly more than rounding in either, and rounding is that of numbers
// of the order of 1, however small the result.
constexpr double loss_floor = 1e-6, norm_floor = 1e-6;

// What a run did in each of its steps, whole tensors by name.
struct RunRecord {
  std::vector<double> losses, norms;
  std::vector<std::map<std::string, at::Tensor>> gradients,
      parameters;  // parameters: after the update
};

// The first place where a run is not finite; `step` is its number of steps, and `what` empty, if
// there is none.
struct NotFinite {
  std::int64_t step = 0;
  // Whether it is the loss or the gradient norm; else it is what the update left in parameters.
  bool before_update = false;
  std::string what;  // "the loss of step 1", "embedding.weight after the update of step 0"
};
NotFinite first_not_finite(const RunRecord& record);
// What one step has; nothing where all is finite. The first of several parameters, by name.
std::optional<NotFinite> not_finite_before(std::int64_t step, double loss, double norm);
std::optional<NotFinite> not_finite_after(std::int64_t step,
                                          const std::map<std::string, at::Tensor>& parameters);

// |x - reference| relative to it, of the elements that are finite in both;
// infinity if these are not the same.
double relative_where_finite(const at::Tensor& x, const at::Tensor& reference, double floor);

// Runs the plan and then the rank that follows it. Sets equal or undecided, errors, steps and
// not_finite of the outcome if all agrees; else leaves it as it is.
void follow(const Experiment& experiment, const Plan& plan, const Plan& one, std::int64_t steps,
            const std::atomic<bool>* stop, VerifyOutcome& outcome);

}  // namespace mw
