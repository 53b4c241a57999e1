// What a training run leaves behind: the measurements of its steps, as a result and as a run file.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "app/experts.h"
#include "app/run_events.h"
#include "app/run_log.h"
#include "common/parting.h"
#include "common/run_timing.h"
#include "launch/restarts.h"
#include "meshwright/engine/run.h"
#include "meshwright/world.h"
#include "observers/run_check.h"
#include "predict/prediction.h"
#include "record/run_facts.h"

namespace mw {

// Seconds since this process started (the launcher's time included).
double seconds_since_start();

class Measurements {
 public:
  // Creates the run file and the event file if the experiment has them. `prediction` and
  // `checkpoints`, which may be null, outlive this.
  Measurements(const Experiment& experiment, const Prediction& prediction, const RunOrigin& origin,
               Checkpoints* checkpoints = nullptr);

  // Adds a step's report, in the recorder's thread. Returns what people should be told at once;
  // mostly nothing.
  std::string add(const StepReport& report, const CoreUse& use,
                  const std::optional<HeldOut>& held_out);
  // Adds the metrics of the step that was added last, which is then complete.
  void add_metrics(std::int64_t step, const StepMetrics& metrics);
  const std::string& earlier_unread() const { return log_.earlier_unread(); }  // see RunLog
  // For accounts of steps: see RunLog.
  void hold_accounts_to(const AloneTimes* alone) { log_.hold_accounts_to(alone); }
  void took(const std::string& what, double seconds) { log_.took(what, seconds); }
  // Writes the steps that are complete, if the files were not written for an interval. Called after
  // each step, and while no step ends for a while.
  void flush_if_due();
  // Writes all that was added so far, so that no checkpoint is ahead of the run file.
  void flush() {
    log_.flush();
    events_.flush();
  }
  // Notes the checkpoints that are complete or have failed since the last call, and returns what
  // people should be told of them.
  struct CheckpointWords {
    std::string text;
    bool failed;
  };
  std::vector<CheckpointWords> take_checkpoints();
  // Whether this process has times of steps; a run that went on from a checkpoint may have none.
  bool ran() const { return !rows_.empty(); }
  // Takes the report of a run-time check, after the last step.
  void take(const CheckReport& check) { check_ = check; }
  // What the run-time check found, for people; empty if nothing was checked.
  std::string check_text() const;
  // Notes, as an event and in the result, that the process was started again after a run that
  // failed.
  void started_again(const Attempt& attempt);
  // Notes where ranks were when the run failed, as an event for each and in the result.
  void keep_places(const std::vector<RankPlace>& places);
  // Notes that a run stopped at a loss or a norm that is not finite, with what was said of it.
  void stopped_diverging(const RankFailed& why);
  // What has become of a run whose steps came to an end. A run that ends with a loss or a gradient
  // norm that is NaN or Inf has failed.
  RunStatus conclude(bool interrupted, const std::string& ended_by);
  // Closes the run file, with the result in it.
  void close(RunStatus status, const Json& result);
  // Closes the run file of a run that broke off, on a rank (-1: on none). `result` is called once
  // the reason is known. Returns why the file lacks something; empty: it does not.
  std::string fail(RunStatus status, int rank, const std::string& why,
                   const std::function<Json()>& result);
  // Why the status is not `done`, or why it is before the last step; else empty.
  const std::string& reason() const { return reason_; }
  // Everything of the result but `kind` and `text`.
  Json result(RunStatus status) const;

  // Zeros before the first step.
  RunSpeed speed() const;
  double tokens_per_second() const { return speed().tokens_per_second; }
  double step_seconds() const { return speed().step_seconds; }
  RunTiming timing() const;  // the steps, and how much other programs used the cores meanwhile
  Parting parting() const;   // how far measured steps are from predicted ones, and why
  const ExpertLoads& experts() const { return loads_; }
  double mfu() const { return speed().mfu; }  // model flops over what the devices could have done
  // Transfers of the last step: the bytes of the rank that sent most, and the most calls of a rank.
  std::map<CommunicationKey, CommunicationUse> communication_use() const;
  // median share of all ranks' time spent waiting for another stage
  double bubble_fraction() const;
  std::int64_t memory_peak(Category category) const;  // peak bytes of the rank that has most of it
  const std::vector<double>& losses() const { return losses_; }
  std::int64_t steps() const { return static_cast<std::int64_t>(losses_.size()); }
  std::int64_t peak_bytes() const;  // peak bytes of the rank with the most
  const std::vector<std::int64_t>& skipped_steps() const { return skipped_; }
  // Skipped steps in which no label counts.
  const std::vector<std::int64_t>& steps_without_labels() const { return without_labels_; }

 private:
  double bubble_of(const StepReport& report) const;
  double flops_of_token() const;
  StepRow row_of(const StepReport& report, const CoreUse& use) const;
  std::string look_for_divergence(const StepReport& report);
  void add_held_out(std::int64_t step, const HeldOut& held_out);
  Json memory() const;
  Json communication() const;
  void take_past();  // takes over the steps before the checkpoint that the run goes on from
  Json checkpoints() const;
  void add_checkpoints(Json& result) const;

  const Experiment& experiment_;
  const Prediction& prediction_;
  Checkpoints* checkpoints_;
  RunLog log_;
  RunEvents events_;
  bool said_lost_ = false;
  std::vector<CheckpointReport> written_;  // reports of checkpoints, failed ones too
  std::vector<double> losses_, norms_;     // of all steps, those before a checkpoint too
  std::vector<StepRow> rows_;              // of the steps of this process
  std::vector<std::int64_t> batches_;      // batch of each step, if batches differ
  double loss_scale_ = 1;                  // of the last step
  Json held_out_ = Json::array();          // held-out losses, an entry for each evaluation
  std::vector<std::int64_t> skipped_, without_labels_;
  std::int64_t at_step_ = 0;  // step that is under way, or being added
  bool complete_ = true;      // whether the last step has its metrics
  // why and since when the last step's loss or norm is not finite; empty: both are
  std::string diverged_;
  std::string reason_;
  std::int64_t restarts_ = 0;
  Json places_;  // null: the run has not failed on a rank
  double startup_seconds_ = 0;
  std::vector<RankReport> ranks_;  // reports of the last step
  ExpertLoads loads_;              // expert choices of the last step
  CheckReport check_;              // of no steps if the run was not checked
};

}  // namespace mw
