// The observers that take part in a run between its steps, in the order in which they are called.
#pragma once

#include <optional>
#include <vector>

#include "app/alone.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/run_checkpoints.h"
#include "meshwright/engine/run.h"
#include "observers/held_out.h"
#include "observers/not_finite.h"
#include "observers/replicas.h"
#include "observers/run_check.h"
#include "script/experiment.h"

namespace mw {

// The observers of a run that all its processes have, in the order in which they are called. The
// process of rank 0 also has observers that record the run, before and after those of the script.
struct Observers {
  // `checkpoints`, `weights`: null where none are written.
  Observers(const RunSetup& setup, const RunChecks& checks, Checkpoints* checkpoints,
            HfExport* weights)
      : check(setup.loss_scale != nullptr) {
    if (setup.account) before.push_back(&alone.emplace(setup.plans()));
    if (checks.check) before.push_back(&check);
    if (setup.held_out_data) {
      const Evaluation& when = checks.evaluation;
      const bool endless = setup.held_out_data->tokens() == 0;
      before.push_back(&held_out.emplace(when.every, when.batches, setup.steps, endless,
                                         setup.held_out_data->sets()));
    }
    for (const auto& observer : checks.observers) own.push_back(observer.get());
    if (checks.stops_on_nan) after.push_back(&not_finite);
    if (const auto every = checks.check_every) after.push_back(&replicas.emplace(every));
    if (checkpoints != nullptr) after.push_back(checkpoints);
    if (weights != nullptr) after.push_back(&exporter.emplace(*weights));
  }
  // All observers. `of_steps` record a step before the script's observers see it, and `of_numbers`
  // record the metrics that these have added.
  std::vector<RunObserver*> all(const std::vector<RunObserver*>& of_steps,
                                const std::vector<RunObserver*>& of_numbers) const {
    std::vector<RunObserver*> list;
    for (const auto& part : {before, of_steps, own, of_numbers, after})
      list.insert(list.end(), part.begin(), part.end());
    return list;
  }
  CheckReport checked() const { return replicas ? replicas->report() : check.report(); }

  std::optional<AloneTimes> alone;
  RunCheck check;
  std::optional<ReplicaCheck> replicas;
  std::optional<HeldOutLoss> held_out;
  EndAtNotFinite not_finite;
  std::optional<ExportParameters> exporter;
  std::vector<RunObserver*> before, own, after;
};

}  // namespace mw
