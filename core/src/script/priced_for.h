// The keys of an experiment that say what its plan is priced for: `cluster` and `stack`.
#pragma once

#include <string>

#include "input/experiment.h"
#include "meshwright/options.h"

namespace mw {

// Whether a run is another one where the key has another value.
bool decides_run(const std::string& key);

// Into Experiment::cluster and ::stack; a problem for what is wrong with them, and for a plan that
// the cluster has no room for.
void read_priced_for(const Values& values, Experiment& experiment, Problems& problems);

}  // namespace mw
