// A plan's programs without their way back: what computes a held-out loss.
#pragma once

#include "meshwright/engine/plan.h"

namespace mw {

// The same plan with programs that compute the forward of every microbatch and the loss, gather
// what they must, send what they must, and update nothing. They keep the same parameters in the
// same tensors: Executor::also. Its schedule is that of training, whose order of forwards they
// have.
std::shared_ptr<const Plan> forward_only(const Plan& plan);

}  // namespace mw
