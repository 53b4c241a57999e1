// What goes into a run's file: a step's rows, what happened, how it ended.
// Without a file all of it does nothing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/alone.h"
#include "app/experts.h"
#include "checkpoint/run_checkpoints.h"
#include "meshwright/engine/run.h"
#include "predict/prediction.h"
#include "record/run_reader.h"
#include "record/run_writer.h"
#include "script/experiment.h"

namespace mw {

// What a run's file and folder say of where it comes from.
struct RunOrigin {
  std::string script;  // its text
  // What the script has loaded from files of its own: see Host::loaded(). Null: nothing.
  const std::map<std::string, std::string>* loaded = nullptr;
  Json machine = nullptr;       // machine_json(); null: not said
  std::string started_by = {};  // Attempt::mark()
  bool log_stays = false;       // LogClaim::stays(): neither is written
};

// What people should know of the steps that the experiment traces: those that its run does not
// come to, or that no file is written. Empty: nothing.
std::string trace_note(const RunRequest& asked, const RunSetup& setup, const std::string& log);

class RunLog {
 public:
  // Creates the file if the experiment names one. Both references outlive this. `resumed`: null, or
  // what the run goes on from; then the file has the rows of the steps before, as the log of the
  // run that it goes on from has them, and /steps in any case.
  RunLog(const Experiment& experiment, const Prediction& prediction, const RunOrigin& origin,
         const Checkpoints* resumed = nullptr);

  // Accounts of steps are held to what these take; null: there are none.
  void hold_accounts_to(const AloneTimes* alone) { alone_ = alone; }
  // Seconds of a core that something beside the ranks took of a step, for accounts.
  void took(const std::string& what, double seconds) { beside_[what] += seconds; }

  // Why the file lacks the rows of the steps before, and has no more of them than /steps. Empty:
  // it has them, or there are none.
  const std::string& earlier_unread() const { return earlier_unread_; }

  void write(const StepReport& report, const StepRow& row, const ExpertLoads& loads);
  void add_series(std::int64_t step, const std::vector<std::pair<std::string, double>>& metrics);
  // See EventRow.
  void event(std::int64_t step, int rank, const std::string& kind, const std::string& message);
  void set_result(const Json& result);  // what readers of the file cannot make of its tables
  void flush_if_due();
  void flush();
  // See RunWriter.
  void finish(RunStatus status, const std::string& reason);
  std::string end_badly(RunStatus status, const std::string& reason);

 private:
  EarlierRows earlier_rows(const Checkpoints& resumed) const;
  void write_memory(const std::vector<RankReport>& ranks);
  void write_rank(std::int64_t step, const RankReport& rank);
  void write_actions(const StepReport& report);
  void write_trace(const StepReport& report);
  void write_account(const StepReport& report);

  const Experiment& experiment_;
  const Prediction& prediction_;
  std::vector<std::vector<RankPrediction>> predicted_;  // by plan of the experiment, then by rank
  std::vector<MemoryForecast> highest_;                 // by rank, over all these plans
  std::unique_ptr<RunWriter> writer_;
  std::string earlier_unread_;
  const AloneTimes* alone_ = nullptr;
  bool bandwidths_written_ = false;
  std::map<std::string, double> beside_;
  std::int64_t steps_written_ = 0;
};

}  // namespace mw
