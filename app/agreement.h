// What processes that run one script settle before and after each verb: that they were given the
// same experiments, and that all go on with the first one's result.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/processes.h"
#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

// Throws ProcessFailed, in every process, if these are not the same in all: by their hashes, with
// the first key in which they differ. Each experiment then runs in these processes.
void agree_on(Processes& processes, const std::string& verb, std::vector<Experiment>& experiments);

// The first process' result, in every process.
Json result_of_first(Processes& processes, const std::string& verb, const Json& result);

// The first place in which two values differ, "plan[1].ways"; and what they are there.
struct Difference {
  std::string key;
  Json one, other;
};
Difference first_difference(const Json& one, const Json& other, const std::string& key = "");

}  // namespace mw
