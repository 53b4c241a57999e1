// Rows of a run file, or of a prediction, as a process of a trace (chrome_trace.h).
#pragma once

#include <string>
#include <vector>

#include "app/chrome_trace.h"
#include "meshwright/engine/plan.h"
#include "predict/machine.h"
#include "predict/prediction.h"
#include "record/columns.h"
#include "record/rows.h"

namespace mw {

// A row for each rank. `schedule`: where it places the virtual stages.
TraceProcess process_of(const std::string& name, const std::vector<ActionRow>& actions,
                        const Schedule& schedule);
// Below each rank what it did op by op, and a lane for each axis that it sends over: of the tables
// /trace and /predicted_trace.
void add_lanes(TraceProcess& process, const Table& table);
// What each rank held, of /trace_memory and /predicted_trace_memory.
void add_counters(TraceProcess& process, const Table& table);

// The step of a plan as it is predicted, of the slowest rank of each stage, with ops, transfers and
// memory if the prediction has them (predict(…, traced)).
TraceProcess predicted_process(const std::string& name, const Plan& plan,
                               const Prediction& prediction, const Machine& machine);

}  // namespace mw
