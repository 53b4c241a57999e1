// A schedule that a script's function returns.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "meshwright/schedule.h"

// What the function gets: { stages, chunks, microbatches, times = {{ forward, dgrad, wgrad }} },
// and with a memory limit { memory, bytes = {{ forward, dgrad }} }. The lists have an entry for
// each virtual stage. Virtual stages and microbatches count from 0 as in "2F0".
mw::Json describe_request(const mw::ScheduleRequest& request);

// From what it returned: a list with one entry for each stage, "0F0 0F1 0B0" or {"0F0", "0F1"}; or
// such text, a line for each stage. Throws Error (plan) that says what is wrong and where.
mw::Schedule schedule_from_script(const mw::Json& returned, const mw::ScheduleRequest& request,
                                  const std::string& name);
