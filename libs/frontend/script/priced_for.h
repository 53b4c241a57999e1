// Reads the keys that say what a plan is priced for: `cluster`, `stack`, `tokens` and `price`.
#pragma once

#include <memory>

#include "common/run_request.h"
#include "meshwright/options.h"
#include "predict/machine.h"
#include "script/read_activations.h"

namespace mw {

// Reads the keys into the request; adds a problem for what is wrong with them, and for a plan that
// the cluster has no room for. `plan`: null where none was made.
void read_priced_for(const Values& values, const Plan* plan, RunRequest& asked, Problems& problems);

// Sets in the request what the memory of the named cluster's device holds beside tensors. Adds no
// problems: read_priced_for() does.
void make_for_cluster(const Values& values, PlanRequest& request);

// The cluster that the keys name; null: none, or one that read_priced_for refuses.
std::unique_ptr<Machine> cluster_of(const Values& values);
// The bytes that a rank may hold: the smaller of `limit` and the memory of the largest device of
// the cluster that the keys name. A limit of 0 is none.
MemoryLimit memory_limit(const Values& values, std::int64_t limit);
// The cluster that the request names; null: this machine.
std::unique_ptr<Machine> machine_of(const RunRequest& asked);

}  // namespace mw
