// The keys of an experiment that say what its plan is priced for: `cluster` and `stack`.
#pragma once

#include <memory>

#include "common/run_request.h"
#include "meshwright/options.h"
#include "predict/machine.h"
#include "script/read_activations.h"

namespace mw {

// Into RunRequest::cluster and ::stack; a problem for what is wrong with them, and for a plan that
// the cluster has no room for. `plan`: null where none was made.
void read_priced_for(const Values& values, const Plan* plan, RunRequest& asked, Problems& problems);

// Into the request what the memory of the cluster's device holds beside tensors, if the experiment
// names one. What is wrong with it, read_priced_for says.
void make_for_cluster(const Values& values, PlanRequest& request);

// The cluster that the keys name; null: none, or one that read_priced_for refuses.
std::unique_ptr<Machine> cluster_of(const Values& values);
// The bytes that a rank may hold: the smaller of `limit` and the memory of the largest device of
// the cluster that the keys name. A limit of 0 is none.
MemoryLimit memory_limit(const Values& values, std::int64_t limit);
// The cluster that the request names; null: this machine.
std::unique_ptr<Machine> machine_of(const RunRequest& asked);

}  // namespace mw
