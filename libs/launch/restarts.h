// run --max-restarts: a script in a process of its own, started again after a run that failed; and
// what such a process knows of that.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct Restarts {
  std::int64_t most = 0;
  std::vector<std::string> settings;  // --set of the processes that are started again
  std::string launcher;  // what starts the processes of the run: "mpirun -n 8"; or empty
  bool several = false;  // the words start several processes: any may end the run
  // If not, the script runs in this process.
  bool wanted() const { return most > 0 || !launcher.empty(); }
};

// Runs the program with `words` until the script comes to its end, or to one that another start
// would not change: a script's error, a plan that is refused, an interruption, NaN, or the same
// error at the same step twice in a row. Waits 1, 2, 4, … 60 s between. Signals that somebody sends
// to this process go to that one. Returns the last one's exit code (1 where a signal ended it).
// `say` tells people.
int run_with_restarts(const Restarts& restarts, const std::vector<std::string>& words,
                      const std::function<void(const std::string&)>& say);

// Which start of a script this process is. It knows by the option --attempt, which
// run_with_restarts adds to the words.
class Attempt {
 public:
  Attempt() = default;  // the only one
  explicit Attempt(const std::string& json);

  std::int64_t restart() const { return restart_; }  // 0: the first start
  // The same for the script's training of this number, counted from 1.
  Attempt of_training(std::int64_t number) const;
  // What all starts of a training by one command have in common, and no other start has: its
  // checkpoints bear it. Empty where nothing starts the script again.
  const std::string& mark() const { return mark_; }
  // "restart 1 of 3, after: …"; empty at the first start.
  std::string text() const;
  // A run has failed, after so many steps. For whoever decides on the next start.
  void failed(const Problem& problem, std::int64_t steps) const;

 private:
  std::int64_t restart_ = 0, most_ = 0;
  std::string mark_, after_, report_;
};

// Whether a run that failed so would fail again: its numbers are NaN.
bool is_divergence(const Problem& problem);

}  // namespace mw
