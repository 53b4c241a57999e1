// The result of a run, read back from its file: what mw.train returned, or, of a run that goes on
// or broke off, what its tables say of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "record/run_reader.h"
#include "record/run_set.h"

namespace mw {

// The numbers of a run that stand for it: ranks, steps, loss (the last; first_loss the first),
// grad_norm, step_seconds, tokens_per_second, mfu, bubble_fraction (medians after the warm-up),
// peak_bytes (of the fullest rank), predicted_peak_bytes, and what /result has by these names.
// Numbers that are not known are null; NaN and Inf are as they are.
Json run_numbers(RunReader& reader);

// As mw.train returns it, with the same names, and beside them: name, hash, seed, created, host,
// versions; per_step (the columns of /steps, lists by name), series (what observe returned, and
// `step`), experiment, plan_description (Plan::description).
Json run_result(RunReader& reader, const RunEntry& entry);

// The leaves of a table by dotted key, lists counted from 1: ("plan[1].ways", 2). Keys that begin
// with "$" are left out; a function is a text that tells it from others.
std::vector<std::pair<std::string, Json>> leaves(const Json& table);

// What says how much work a token is: model, sequence, batch and data of a resolved experiment, but
// the data's seed, as keys and texts. Speeds are compared where these are equal. Empty: not known.
std::vector<std::pair<std::string, std::string>> work_of(const Json& experiment);

// What the run was: the experiment as the file has it; of files without one, what the plan says of
// it, and the seed.
Json experiment_of(RunReader& reader);

}  // namespace mw
