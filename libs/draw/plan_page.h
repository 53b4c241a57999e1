// The page of plans (`plan --html`): mesh, placements, rules, the step's timeline on all stages,
// memory over time, and communication.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"
#include "predict/prediction.h"

namespace mw {

// The page's data for one plan and its prediction. `memory_limit`: bytes that a rank may hold; 0:
// no limit. `libraries`: bytes that libraries keep on each device (Machine::kept_by_libraries).
Json plan_page_data(const Plan& plan, const Prediction& prediction, std::int64_t memory_limit,
                    std::int64_t libraries);

// Makes one page of all plans of a script, in order.
std::string plans_html(const std::string& script, std::vector<Json> plans);

}  // namespace mw
