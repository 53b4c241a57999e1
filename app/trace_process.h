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

// A process with a row for each rank. `schedule`: says which virtual stages a stage has.
TraceProcess process_of(const std::string& name, const std::vector<ActionRow>& actions,
                        const Schedule& schedule);
// Adds lanes below each rank: one for its ops, and one for each axis that it sends over. `table`:
// /trace or /predicted_trace.
void add_lanes(TraceProcess& process, const Table& table);
// Adds counters of what each rank held. `table`: /trace_memory or /predicted_trace_memory.
void add_counters(TraceProcess& process, const Table& table);

// The predicted step of a plan, on the slowest rank of each stage, with ops, transfers and memory
// if the prediction has them (predict(…, traced)).
TraceProcess predicted_process(const std::string& name, const Plan& plan,
                               const Prediction& prediction, const Machine& machine);

}  // namespace mw
