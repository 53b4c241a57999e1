// The ranks of a plan as threads of this process, each with an executor that is ready for step 0.
#pragma once

#include <atomic>
#include <functional>

#include "input/experiment.h"
#include "meshwright/ledger.h"
#include "run/executor.h"

namespace mw {

// Throws Error (plan) if the plan has more ranks than that.
void check_thread_ranks(const Plan& plan);

// What a rank does, in its own thread. The ledger books the rank's allocations and communication.
using RankBody = std::function<void(Executor& executor, Ledger& ledger)>;

// Runs `body` on every rank of `plan` (the experiment's own, or another one of the same model), its
// parameters filled, in the plan's precision. Throws Error (run) naming the rank if one fails.
// `stop` may be null; see StepInput. `limited`: the experiment's memory limit holds.
void with_executors(const Experiment& experiment, const Plan& plan, const std::atomic<bool>* stop,
                    const RankBody& body, bool limited = false);

// Fills a rank's parameters from the experiment's weights file, or from its seed.
void fill_parameters(Executor& executor, const Experiment& experiment);

}  // namespace mw
