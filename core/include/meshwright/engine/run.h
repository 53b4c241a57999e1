// Runs of a plan: what one is given, and how it is run. The kernel trains; checkpoints, checks,
// evaluation, records and whatever else happens between steps are observers
// (meshwright/observer.h).
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data.h"
#include "meshwright/engine/loss_scale.h"
#include "meshwright/engine/plan.h"
#include "meshwright/ledger.h"
#include "meshwright/observer.h"
#include "meshwright/optimizer.h"
#include "meshwright/platform.h"
#include "meshwright/program.h"
#include "meshwright/world.h"

namespace mw {

class Processes;  // meshwright/engine/processes.h

// Writes a part of a parameter's initial numbers (local sizes of `part`, any real dtype) to `out`.
using FillParameter = std::function<void(const Value& parameter, const std::vector<Range>& part,
                                         const at::Tensor& out)>;

// What a run is given. It outlives the run.
struct RunSetup {
  // The plan of the steps with the largest batch, and of all steps unless there are `step_plans`.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const StepPlans> step_plans;  // null: every step has the same plan
  std::shared_ptr<const TokenSource> data;
  std::shared_ptr<const Optimizer> optimizer;
  std::function<double(std::int64_t step)> schedule;  // the learning rate of a step
  std::shared_ptr<const LossScale> loss_scale;        // null: none
  std::int64_t first_step = 0;                        // where the run goes on
  std::int64_t steps = 0;                             // the step before which the run ends
  // Initial parameters: written by `fill`, or, where it is null, drawn from the seed. With
  // `goes_on` an observer writes everything that a rank keeps in its begin().
  std::int64_t seed = 0;
  FillParameter fill;
  bool goes_on = false;
  // Samples that a run which goes on with another batch has had beyond those of its steps' numbers.
  std::int64_t sample_offset = 0;
  // What RankRun::evaluate computes: a program without a way back (forward_only()), on other data.
  std::shared_ptr<const Plan> held_out_plan;  // null: nothing is evaluated
  std::shared_ptr<const TokenSource> held_out_data;

  int threads = 0;  // of one rank's ops; 0: the cores over the ranks
  std::shared_ptr<const Platform> platform = cpu_platform();  // what ranks compute on
  std::int64_t memory = 0;          // bytes that a rank may hold; 0: no limit
  Ledger::LimitHint memory_hint;    // advice for the ledger's error where `memory` does not suffice
  double timeout = 300;             // seconds that a collective waits for a rank
  std::vector<std::int64_t> trace;  // steps whose every instruction is timed; sorted
  bool account = false;             // the traced steps say where their seconds went
  // What carries the ranks together; null: this process alone. A plan of one rank runs in each.
  Processes* processes = nullptr;

  // The number of a step's plan in `step_plans`; 0 is `plan`.
  int which_plan(std::int64_t step) const { return step_plans ? step_plans->of_step.at(step) : 0; }
  const Plan& plan_at(std::int64_t step) const {
    return step_plans ? *step_plans->plans[which_plan(step)] : *plan;
  }
  // The plans of its steps, each once.
  std::vector<const Plan*> plans() const {
    if (!step_plans) return {plan.get()};
    std::vector<const Plan*> all;
    for (const auto& each : step_plans->plans) all.push_back(each.get());
    return all;
  }
  std::int64_t first_sample(std::int64_t step) const {
    return sample_offset + (step_plans ? step_plans->first.at(step) : step * plan->request.batch);
  }
};

// A whole tensor of these dims with every dim in its own order, where a strategy permutes the
// elements of one (Draft::permute_tokens).
at::Tensor in_own_order(const Program& program, at::Tensor whole, const Dims& dims);

// Calls a function on rank 0 after each step; the run ends after the step of which it returns true.
class OnStep : public RunObserver {
 public:
  explicit OnStep(std::function<bool(const StepReport& report)> call) : call_(std::move(call)) {}
  void step(RankRun& /*rank*/, StepEnd& end) override {
    if (end.report != nullptr && call_(*end.report)) end.last = true;
  }
  bool decides() const override { return true; }

 private:
  const std::function<bool(const StepReport&)> call_;
};

struct TrainOutcome {
  bool interrupted = false;
  std::int64_t steps = 0;  // finished
  std::string ended_by;    // the name of the observer that ended the run; empty: none did
};

// Runs the steps of a run, in all of its processes alike. Throws Error (plan) before any rank
// starts if there are too many, RankFailed if one fails; what observers heard until then stands.
// `stop`: set, in any process, to end after the current step; may be null.
TrainOutcome train(const RunSetup& setup, std::span<RunObserver* const> observers,
                   const std::atomic<bool>* stop);

}  // namespace mw
