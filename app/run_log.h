// Writes a run's file: the rows of each step, what happened, and how the run ended. Without a file
// all of it does nothing.
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

// What a run's file and folder say of the script and the machine that the run comes from.
struct RunOrigin {
  std::string script;  // text of the script
  // What the script has loaded from files of its own: see Host::loaded(). Null: nothing.
  const std::map<std::string, std::string>* loaded = nullptr;
  Json machine = nullptr;       // machine_json(); null: not said
  std::string started_by = {};  // Attempt::mark()
  bool log_stays = false;       // LogClaim::stays(): neither file nor folder is written
};

// A note on the steps to be traced: that the run does not come to some of them, or that no file is
// written. Empty: nothing to note.
std::string trace_note(const RunRequest& asked, const RunSetup& setup, const std::string& log);

class RunLog {
 public:
  // Creates the file if the experiment names one. The experiment and the prediction outlive this.
  // `resumed`: null, or the checkpoints that the run goes on from. The file then has the earlier
  // steps' rows of /steps, and their other rows if the earlier run's log has them.
  RunLog(const Experiment& experiment, const Prediction& prediction, const RunOrigin& origin,
         const Checkpoints* resumed = nullptr);

  // Sets the times that accounts of steps are compared with; null: no accounts are written.
  void hold_accounts_to(const AloneTimes* alone) { alone_ = alone; }
  // Adds core seconds that something beside the ranks took for a step, for accounts.
  void took(const std::string& what, double seconds) { beside_[what] += seconds; }

  // Why the file lacks rows of the earlier steps, all but those of /steps. Empty: it has them, or
  // there are none.
  const std::string& earlier_unread() const { return earlier_unread_; }

  void write(const StepReport& report, const StepRow& row, const ExpertLoads& loads);
  void add_series(std::int64_t step, const std::vector<std::pair<std::string, double>>& metrics);
  // Adds an event: see EventRow.
  void event(std::int64_t step, int rank, const std::string& kind, const std::string& message);
  void set_result(const Json& result);  // keeps what readers cannot compute from the file's tables
  void flush_if_due();
  void flush();
  // End the file: see RunWriter.
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
  std::vector<std::vector<RankPrediction>> predicted_;  // of each plan of the experiment, by rank
  std::vector<MemoryForecast> highest_;                 // by rank, the highest over all plans
  std::unique_ptr<RunWriter> writer_;
  std::string earlier_unread_;
  const AloneTimes* alone_ = nullptr;
  bool bandwidths_written_ = false;
  std::map<std::string, double> beside_;
  std::int64_t steps_written_ = 0;
};

}  // namespace mw
