// Mistakes of mixes that those who know the hardware avoid: tensor parallelism or experts whose
// ranks lie on several nodes, fewer microbatches than stages, data parallelism that keeps all on
// each rank where sharded states cost nothing, microbatches too small to fill kernels, software
// that would run out of the device. Each is said only beside a plan of as many ranks that avoids
// it, and by what that is predicted to gain.
#pragma once

#include <string>
#include <vector>

#include "common/run_request.h"
#include "predict/prediction.h"

namespace mw {

// The pitfalls that the request's plan walks into, a line each; none where other plans would take
// long to make. `own`: of the request's plan on the machine. What hangs on nodes and devices is
// looked for where the machine is a cluster.
std::vector<std::string> find_pitfalls(const RunRequest& request, const Machine& machine,
                                       const Prediction& own);

}  // namespace mw
