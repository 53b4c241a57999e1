// The setup of a run of a plan, and the function that trains. Checkpoints, checks, evaluation,
// records and all else that happens between steps are observers (meshwright/observer.h).
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

// The inputs of a run. The setup must outlive the run.
struct RunSetup {
  // The plan of the steps with the largest batch, and of all steps unless there are `step_plans`.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const StepPlans> step_plans;  // null: every step has the same plan
  std::shared_ptr<const TokenSource> data;
  std::shared_ptr<const Optimizer> optimizer;
  std::function<double(std::int64_t step)> schedule;  // the learning rate of a step
  std::shared_ptr<const LossScale> loss_scale;        // null: none
  std::int64_t first_step = 0;  // the first step of the run; above 0 for a run that resumes
  std::int64_t steps = 0;       // the run ends before this step
  // Initial parameters: written by `fill`, or, if that is null, drawn from the seed. If `goes_on`
  // (the run resumes), an observer writes all lasting tensors of a rank in RunObserver::begin.
  std::int64_t seed = 0;
  FillParameter fill;
  bool goes_on = false;
  // Added to the sample numbers of all steps, if a run resumes with another batch size.
  std::int64_t sample_offset = 0;
  // The groups of rows by which the samples of each step are ordered (TokenSource::order_of_rows);
  // empty: those of the step's plan. Two runs that are compared have the same.
  std::vector<std::int64_t> row_groups;
  // RankRun::evaluate runs this plan (forward_only()) on these data.
  std::shared_ptr<const Plan> held_out_plan;  // null: nothing is evaluated
  std::shared_ptr<const TokenSource> held_out_data;

  int threads = 0;  // threads of one rank's ops; 0: the cores divided by the ranks
  std::shared_ptr<const Platform> platform = cpu_platform();  // the devices of the ranks
  std::int64_t memory = 0;          // bytes that a rank may hold; 0: no limit
  Ledger::LimitHint memory_hint;    // advice for the ledger's error where `memory` does not suffice
  double timeout = 300;             // seconds that a collective waits for a rank
  std::vector<std::int64_t> trace;  // steps whose every instruction is timed; sorted
  bool account = false;             // whether traced steps take an account (StepAccount)
  // The processes that share the ranks; null: this process has all ranks. A plan of one rank runs
  // in each process.
  Processes* processes = nullptr;

  // The index of a step's plan in `step_plans`; 0 is `plan`.
  int which_plan(std::int64_t step) const { return step_plans ? step_plans->of_step.at(step) : 0; }
  const Plan& plan_at(std::int64_t step) const {
    return step_plans ? *step_plans->plans[which_plan(step)] : *plan;
  }
  // The plans of all steps, each once.
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
  std::int64_t steps = 0;  // number of finished steps
  std::string ended_by;    // the name of the observer that ended the run; empty: none did
};

// Runs the steps of a run; called in all of its processes. Throws Error (plan) before any rank
// starts if there are too many ranks, and RankFailed if a rank fails; observers keep what they got
// until then. `stop`: set, in any process, to end after the current step; may be null.
TrainOutcome train(const RunSetup& setup, std::span<RunObserver* const> observers,
                   const std::atomic<bool>* stop);

}  // namespace mw
