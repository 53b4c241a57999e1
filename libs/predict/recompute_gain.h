// Whether what a plan recomputes, or computes in slices, is worth it: the same plan without is
// predicted beside it.
#pragma once

#include <string>

#include "predict/prediction.h"

namespace mw {

// Fills in `prediction.recompute_by_stage` where a policy has fitted recompute to memory, and
// `prediction.recompute` where the plan recomputes anything and can be made without that in about a
// second. The latter is left out where a limit of memory, { fit = … }, chose what is needed.
// Likewise `prediction.slices` where the plan has coshard.
void weigh_recompute(const Plan& plan, const Machine& machine, int threads, Prediction& prediction);

// The end of the plan's note of what each stage recomputes: the step with the same choice on all
// stages. Empty where that is not known.
std::string recompute_alike_text(const Prediction& prediction);

// A sentence with the numbers, where it frees less than a hundredth of the fullest rank's peak and
// of what is in host memory, and makes no step shorter; else empty.
std::string recompute_note(const Plan& plan, const Prediction& prediction);
// The same of coshard.
std::string slices_note(const Plan& plan, const Prediction& prediction);

// Adds what is bought for little to a prediction's JSON: what recompute frees and costs, and
// devices that are idle.
void add_waste(const Prediction& prediction, Json& json);

}  // namespace mw
