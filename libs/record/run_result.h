// The result of a run, read back from its file: what mw.train returned, or, for a run that goes on
// or broke off, what its tables say of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "record/run_reader.h"
#include "record/run_set.h"

namespace mw {

// The numbers by which a run is listed: ranks, steps, loss (the last; first_loss the first),
// grad_norm, step_seconds, tokens_per_second, mfu, bubble_fraction (medians after the warm-up),
// peak_bytes (of the fullest rank), predicted_peak_bytes, and some more that /result has. Numbers
// that are not known are null; NaN and Inf are kept.
Json run_numbers(RunReader& reader);

// A run's result with the names that mw.train gives it, and in addition: name, hash, seed, created,
// host, versions; per_step (the columns of /steps, lists by name), series (what observe returned,
// and `step`), experiment, plan_description (Plan::description).
Json run_result(RunReader& reader, const RunEntry& entry);

// The leaves of a table by dotted key, lists counted from 1: ("plan[1].ways", 2). Keys that begin
// with "$" are left out; a function is a text that tells it from others.
std::vector<std::pair<std::string, Json>> leaves(const Json& table);

// The keys and values that decide how much work a token is: model, sequence, batch and data of a
// resolved experiment, but for the data's seed. Speeds are compared where these are equal. Empty:
// not known.
std::vector<std::pair<std::string, std::string>> work_of(const Json& experiment);

// The run's experiment; for files without one, the plan's description and the seed.
Json experiment_of(RunReader& reader);

}  // namespace mw
