// What TensorBoard gets of a run: the columns of its steps, its series, what ranks held and sent,
// and its script. Without a folder of events (RunOutputs::tensorboard) all of it does nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/run_log.h"
#include "record/event_file.h"

namespace mw {

class RunEvents {
 public:
  // Throws as EventFile does. `resumed`: null, or what the run goes on from.
  RunEvents(const RunRequest& asked, const RunOutputs& outputs, const RunOrigin& origin,
            const Checkpoints* resumed);

  void write(const StepReport& report, const StepRow& row);
  void add_series(std::int64_t step, const std::vector<std::pair<std::string, double>>& metrics);
  // Where events cannot be written the run goes on without them: see lost().
  void flush_if_due();
  void flush();
  // Why the events from some step on are lost; empty: they are not.
  const std::string& lost() const { return lost_; }
  // Ends the events after the last step. Removes events of earlier runs of the same experiment if
  // this run is done.
  void finish(bool done);

 private:
  template <class Call>
  void attempt(Call&& call) noexcept;

  std::optional<EventFile> file_;
  std::string lost_;
};

}  // namespace mw
