// A schedule that a script's function returns.
#pragma once

#include "meshwright/json.h"
#include "meshwright/schedule.h"

// What the function gets: { stages, chunks, microbatches, stage_of, times = {{ forward, dgrad, wgrad }} },
// virtual stages and microbatches counted from 0 as in "2F0".
mw::Json describe_request(const mw::ScheduleRequest& request);

// From what it returned: a list with one entry for each stage, "0F0 0F1 0B0" or {"0F0", "0F1"}; or such
// text, a line for each stage. Throws Error (plan) that says what is wrong and where.
mw::Schedule schedule_from_script(const mw::Json& returned, const mw::ScheduleRequest& request);
