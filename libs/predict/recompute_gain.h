// Weighs whether a plan's recompute, or its slices in time (coshard), are worth their cost: the
// plan without them is predicted beside it.
#pragma once

#include <string>

#include "predict/prediction.h"

namespace mw {

// Fills in `prediction.recompute_by_stage` where a policy has fitted recompute to memory, and
// `prediction.recompute` where the plan recomputes anything and can be made without that in about a
// second. The latter is left out where a limit of memory, { fit = … }, chose what is needed. Fills
// in `prediction.slices` where the plan has coshard.
void weigh_recompute(const Plan& plan, const Machine& machine, int threads, Prediction& prediction);

// The end of the plan's note of what each stage recomputes: the step with the same choice on all
// stages. Empty where that is not known.
std::string recompute_alike_text(const Prediction& prediction);

// A sentence with numbers where recompute frees less than a hundredth of the fullest rank's peak
// and of its host memory, and makes no step shorter; else empty.
std::string recompute_note(const Plan& plan, const Prediction& prediction);
// recompute_note() for coshard.
std::string slices_note(const Plan& plan, const Prediction& prediction);

// Adds to a prediction's JSON what recompute frees and costs, and the devices that are idle.
void add_waste(const Prediction& prediction, Json& json);

}  // namespace mw
