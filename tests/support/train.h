// Trains an experiment as mw.train does, with a function that hears of each step.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/engine/run.h"
#include "observers/held_out.h"
#include "observers/not_finite.h"
#include "observers/run_check.h"
#include "script/experiment.h"

namespace mw::test {

struct Trained : TrainOutcome {
  CheckReport check;  // of no steps without one
};

// `on_step` is called on rank 0 after each step; the run ends once `ends`, unless null, says so.
inline Trained train(const Experiment& e, const std::atomic<bool>* stop,
                     const std::function<void(const StepReport&)>& on_step,
                     const std::function<bool()>& ends = nullptr, RunObserver* more = nullptr) {
  RunCheck check(e.loss_scale != nullptr);
  ReplicaCheck replicas(e.check_every);
  HeldOutLoss held_out(e.evaluation.every, e.evaluation.batches, e.steps,
                       e.held_out_data && e.held_out_data->tokens() == 0);
  OnStep hears([&](const StepReport& report) {
    if (on_step) on_step(report);
    return ends && ends();
  });
  EndAtNotFinite not_finite;
  std::vector<RunObserver*> observers;
  if (e.check) observers.push_back(&check);
  if (e.held_out_data) observers.push_back(&held_out);
  observers.push_back(&hears);
  if (e.stops_on_nan) observers.push_back(&not_finite);
  if (more != nullptr) observers.push_back(more);
  if (e.check_every > 0) observers.push_back(&replicas);
  return {mw::train(e, observers, stop), e.check ? check.report() : replicas.report()};
}

}  // namespace mw::test
