// Plans of a run whose steps differ: how each step's batch is cut into microbatches,
// and a plan for each kind of step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/microbatch.h"

namespace mw {

// The plans of a run whose steps differ. All keep the same parameters in the same tensors.
struct StepPlans {
  std::vector<std::shared_ptr<const Plan>> plans;  // the first: of the largest batch
  std::vector<int> of_step;                        // which of them
  std::vector<std::int64_t> first;                 // sample of each step
};

struct MicrobatchPolicy {
  std::int64_t size = 0;  // sequences of a microbatch; 0: all that a rank has
  // Finds the microbatches by making plans of the request; empty: what follows decides.
  std::function<std::shared_ptr<const Plan>(const PlanRequest&, Problems&)> search;
  // The shape of a step, if sizes do not follow from `size`; `sample`: its first.
  std::function<StepShape(std::int64_t step, std::int64_t sample)> shape;
  bool by_step = false;  // it looks at the step, so that not all steps need be alike
};

// The request's plan with the policy; of steps that differ, that of the largest batch, and all of
// them in `steps`. Null if there are problems.
std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems);

}  // namespace mw
