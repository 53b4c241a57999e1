// `plan --html`: plans as a page. The mesh and who holds what, the rules, the step's timeline on
// all stages, memory over time, and what is sent.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"
#include "predict/prediction.h"

namespace mw {

// What the page shows of one plan and its prediction. `memory_limit`: of a rank, bytes; 0: none.
// `libraries`: bytes that they keep on each device (Machine::kept_by_libraries).
Json plan_page_data(const Plan& plan, const Prediction& prediction, std::int64_t memory_limit,
                    std::int64_t libraries);

// One page for the plans of a script, in their order.
std::string plans_html(const std::string& script, std::vector<Json> plans);

}  // namespace mw
