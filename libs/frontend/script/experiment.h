// An experiment: everything that a run, a prediction or a check is given,
// resolved and known to be right.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/weights.h"
#include "meshwright/data.h"
#include "meshwright/engine/loss_scale.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/step_plans.h"
#include "meshwright/json.h"
#include "meshwright/ledger.h"
#include "meshwright/lr_schedule.h"
#include "meshwright/optimizer.h"

namespace mw {

class Processes;  // comm/processes.h

// A held-out loss now and then: forward alone, on samples of other data, by the run's own plan.
struct Evaluation {
  std::shared_ptr<const TokenSource> data;  // null: none
  std::shared_ptr<const Plan> plan;         // forward_only()
  std::int64_t every = 0;                   // steps; after the last step too
  std::int64_t batches = 1;                 // each of a step's size

  // After step `step` of `steps`: every so many, and after the last.
  bool due(std::int64_t step, std::int64_t steps) const {
    return data != nullptr && ((step + 1) % every == 0 || step + 1 == steps);
  }
};

// What a run writes of itself as it goes on, and whether it goes on from that.
struct Checkpointing {
  std::string path;        // a folder of checkpoints; empty: none
  std::int64_t every = 0;  // steps; 0: at the end alone
  std::int64_t keep = 0;   // of the newest; 0: all
  bool resume = false;     // go on from the newest that is whole
  std::string from;        // ... of this folder, or this one; empty: of `path`
  bool changed = false;    // although the experiment is no longer the same
};

class HfExport;

struct Experiment {
  // Of the steps with the largest batch; of all, unless there are `step_plans`.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const StepPlans> step_plans;  // null: every step has the same plan
  // The microbatch policy looks at each step's number, so that steps may differ: those of this run,
  // or only later ones of a longer run.
  bool shapes_steps = false;
  std::shared_ptr<const TokenSource> data;
  Json data_settings;  // what it was made of, with its defaults
  std::shared_ptr<const Optimizer> optimizer;
  LrSchedule schedule;
  std::shared_ptr<const LossScale> loss_scale;  // null: none
  std::int64_t steps = 0;
  std::int64_t seed = 0;
  int threads = 0;  // of one rank's ops; 0: the cores over the ranks
  at::DeviceType device = at::kCPU;
  std::function<void()> load_device;       // run/device.h; null: nothing is to be loaded
  std::shared_ptr<const Weights> weights;  // null: initialised from the seed
  std::shared_ptr<HfExport> exporter;      // of the weights after the last step; null: none
  std::string name;                        // the script's, or the plan's mix
  std::string hash;                        // script/identity.h
  Json resolved;                           // ... too: every key, with its default
  std::string log;                         // run file; empty: none
  std::string folder;      // run folder, where `log` names one: the run file lies in it
  bool overwrite = false;  // another run's log may be replaced
  Evaluation evaluation;
  Checkpointing checkpoint;
  bool goes_on = false;  // ranks take what they keep from a checkpoint, and initialise nothing
  // Samples that a run which goes on with another batch has had beyond those of its steps' numbers.
  std::int64_t sample_offset = 0;
  std::int64_t memory = 0;  // bytes that a rank may hold; 0: no limit
  bool force = false;       // started although this machine's memory does not suffice
  // That carry the ranks together; null: this one alone. A plan of one rank runs in each.
  Processes* processes = nullptr;
  bool check = false;  // what plans say of tensors is asserted (run/check.h)
  // Steps whose every op and transfer is timed, for the run file; sorted, none without one.
  std::vector<std::int64_t> trace;
  double timeout = 300;  // seconds that a collective waits for a rank
  // A step whose loss or gradient norm is NaN or Inf ends the run, before its update.
  bool stops_on_nan = true;
  // Called after each step on the first rank's thread with the step's index and what is known of
  // it { loss =, grad_norm =, lr =, tokens =, seconds = }; null if the script has none.
  std::function<Json(std::int64_t, const Json& facts)> observe;
  // What to do if `memory` does not suffice (predict/memory_limit.h): for the ledger's message.
  Ledger::LimitHint memory_hint;
  // Makes a strategy of an entry such as { plugin = "tp", ways = 4 }; null where there are no
  // plugins. Throws Error for what the plugin does not take.
  std::function<StrategyChoice(const Json& entry)> make_strategy;
  std::function<std::vector<std::string>()> strategy_names;  // that may stand as `plugin`; or null
  Json table;                                                // what the user wrote
  // What a plan is priced for, as mw.cluster and mw.stack made them; null: this machine.
  Json cluster, stack;

  // Which of the plans a step has: 0 for `plan`.
  int which_plan(std::int64_t step) const { return step_plans ? step_plans->of_step.at(step) : 0; }
  const Plan& plan_at(std::int64_t step) const {
    return step_plans ? *step_plans->plans[which_plan(step)] : *plan;
  }
  std::int64_t first_sample(std::int64_t step) const {
    return sample_offset + (step_plans ? step_plans->first.at(step) : step * plan->request.batch);
  }
};

}  // namespace mw
