// The ranks of a plan that this process carries, as threads, each with an executor that is ready
// for step 0.
#pragma once

#include <atomic>
#include <functional>

#include "meshwright/ledger.h"
#include "run/executor.h"
#include "run/runtime.h"
#include "script/experiment.h"

namespace mw {

// Throws Error (plan) if the plan has more ranks than threads can be in this process, or the
// processes, unless null, cannot share them evenly (run/runtime.h).
void check_thread_ranks(const Plan& plan, const Processes* processes = nullptr);

// What carries a run of the plan: the experiment's processes.
RankRuntime runtime_of(const Experiment& experiment, const Plan& plan);

// What a rank does, in its own thread. The ledger books the rank's allocations and communication.
using RankBody = std::function<void(Executor& executor, Ledger& ledger)>;

// Runs `body` on every rank of `plan` (the experiment's own, or another one of the same model) that
// is here, its parameters filled, in the plan's precision. Throws as RankRuntime::run, in all
// processes alike. `stop` may be null; see StepInput. `limited`: the experiment's memory limit
// holds.
void with_executors(RankRuntime& runtime, const Experiment& experiment, const Plan& plan,
                    const std::atomic<bool>* stop, const RankBody& body, bool limited = false);
void with_executors(const Experiment& experiment, const Plan& plan, const std::atomic<bool>* stop,
                    const RankBody& body);

// Fills a rank's parameters from the experiment's weights file, or from its seed.
void fill_parameters(Executor& executor, const Experiment& experiment);

}  // namespace mw
