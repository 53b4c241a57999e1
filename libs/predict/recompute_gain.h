// Whether what a plan recomputes is worth it: the same plan without is predicted beside it.
#pragma once

#include <string>

#include "predict/prediction.h"

namespace mw {

// Fills in `prediction.recompute_by_stage` where a policy fits memory stage by stage, and
// `prediction.recompute` where the plan recomputes anything, and the same plan without it
// can be made in about a second. Not for a limit of memory, { fit = … }, which takes what it needs.
void weigh_recompute(const Plan& plan, const Machine& machine, int threads, Prediction& prediction);

// What the plan's note of that goes on with: what the same choice for all stages would take; or
// empty.
std::string recompute_alike_text(const Prediction& prediction);

// A sentence with the numbers, where it frees less than a hundredth of the fullest rank's peak;
// else empty.
std::string recompute_note(const Plan& plan, const Prediction& prediction);

// Adds what is bought for little to a prediction's JSON: what recompute frees and costs, and
// devices that are idle.
void add_waste(const Prediction& prediction, Json& json);

}  // namespace mw
