// Chooses the layers of a pipeline's stages by what a machine is predicted to take for them. The
// strategy's own choice goes by declared costs (stage_balance.h), which know neither the kernels
// and links of the hardware nor its memory.
#pragma once

#include <cstdint>
#include <memory>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "predict/machine.h"
#include "predict/variants.h"

namespace mw {

// Makes the request's plan, as make_plan does. Where a pipeline balances its stages itself and the
// request gives no layers, some other layouts are planned and priced: the even one, one that is
// balanced by the times predicted for the strategy's own, and, as long as the step becomes shorter,
// those that differ from the best so far by a layer. The plan has the shortest step among those
// that fit the memory, or the least peak where none fits, and a note says what the even layout
// would take. Null, with the problems, where make_plan gives no plan.
// Where the request or `make` chooses recompute or microbatches by what fits, that is chosen for
// each layout.
// `memory`: bytes that a rank may hold, beside the machine's own limit; 0: no limit.
// `tries`: layouts that are planned at most, beside the strategy's own and the even one; fewer
// where recompute is chosen for each.
constexpr int most_layouts = 16;
std::shared_ptr<const Plan> make_balanced_plan(const PlanRequest& request, const Machine& machine,
                                               std::int64_t memory, Problems& problems,
                                               int tries = most_layouts,
                                               const PlanMaker& make = make_plan);
// The plan that make_balanced_plan makes, with its prediction. `own` is what make_plan gives for
// the request, predicted on the same machine, which is not made again.
PredictedPlan predict_balanced_plan(const PlanRequest& request, const Machine& machine,
                                    std::int64_t memory, PredictedPlan own);

// Makes the request's plan, as make_plan does, where no machine is named. Where a pipeline balances
// its stages itself and the request gives no layers, layouts near the strategy's own are planned
// too. Of the layouts that keep to `memory` (bytes a rank; 0: no limit), the one is taken whose
// busiest stage has least to do by declared costs, and among equal ones the one with the lowest
// peak. Where no layout keeps to it, the one with the lowest peak is taken. A note says what was
// chosen.
std::shared_ptr<const Plan> make_plan_within(const PlanRequest& request, std::int64_t memory,
                                             Problems& problems);

// make_balanced_plan() for a run with a policy of microbatches, whose steps may differ
// (make_step_plans). All steps have one layout: the even one, the strategy's own, or the one that
// is balanced for the largest batch, whichever takes least over all steps.
std::shared_ptr<const Plan> make_balanced_step_plans(const PlanRequest& request,
                                                     const MicrobatchPolicy& policy,
                                                     std::int64_t steps, const Machine& machine,
                                                     std::int64_t memory,
                                                     std::shared_ptr<const StepPlans>& all,
                                                     Problems& problems);

}  // namespace mw
