// `run --max-restarts`: runs a script in a process of its own, and starts it again after a run that
// failed. Attempt tells such a process which start it is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct Restarts {
  std::int64_t most = 0;              // largest number of restarts
  std::vector<std::string> settings;  // values of --set for all starts after the first
  std::string launcher;  // the command that starts the run's processes: "mpirun -n 8"; empty: none
  bool several = false;  // the arguments start several processes, any of which may end the run
  // Whether a process of its own is needed; if not, the script runs in this process.
  bool wanted() const { return most > 0 || !launcher.empty(); }
};

// Runs the program with the arguments `words`, again and again until it ends well or another start
// would not help: after an error of the script, a refused plan, an interruption, NaN, or the same
// error at the same step twice in a row. Waits 1, 2, 4, … 60 s in between. Passes signals on to the
// program. Returns the exit code of the last start (1 where a signal ended it). `say` prints a
// message for people.
int run_with_restarts(const Restarts& restarts, const std::vector<std::string>& words,
                      const std::function<void(const std::string&)>& say);

// Tells a process which start of its script it is, by the value of the option --attempt, which
// run_with_restarts() adds to the arguments.
class Attempt {
 public:
  Attempt() = default;  // the only start
  explicit Attempt(const std::string& json);

  std::int64_t restart() const { return restart_; }  // 0: the first start
  // This Attempt with the mark of the script's `number`-th training, counted from 1.
  Attempt of_training(std::int64_t number) const;
  // A text that is the same for all starts of a training by one command, and for no other start.
  // Checkpoints store it (CheckpointIndex::started_by). Empty where nothing starts the script
  // again.
  const std::string& mark() const { return mark_; }
  // "restart 1 of 3, after: …"; empty at the first start.
  std::string text() const;
  // Reports to run_with_restarts() that a run has failed after so many steps.
  void failed(const Problem& problem, std::int64_t steps) const;

 private:
  std::int64_t restart_ = 0, most_ = 0;
  std::string mark_, after_, report_;
};

// Whether a run failed because its numbers are not finite, so that it would fail again.
bool is_divergence(const Problem& problem);

}  // namespace mw
