// A training that is disturbed: started with restarts, watched step by step, started again where
// it has ended, and held to the losses of the training that nobody disturbs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chaos/members.h"
#include "meshwright/data.h"
#include "meshwright/json.h"

namespace mw::chaos {

// How the script's processes are started.
struct Start {
  std::string script;
  std::vector<std::string> settings, plugin_path, words;  // words: behind "--"
  int processes = 0;                                      // 0: not said
  std::string launcher, communicator;
  double timeout = 10;           // seconds that ranks wait for each other
  std::int64_t checkpoints = 5;  // steps from one to the next
  // Copies of the files that the script names as its data, in which bits may flip.
  std::vector<std::filesystem::path> data;
  // The program's words, without those that a run of chaos alone has.
  std::vector<std::string> words_of_run() const;
};

// In a run's folder: copies of the files that it reads.
inline constexpr const char* data_folder = "data";
// Copies the files of a run's data into the folder. From then on `start` reads the copies of those
// that the script names (by the setting "data.path={...}"), which it has as its `data`. False if
// there are no files, if they have more than 256 MiB together, or if one cannot be copied.
bool copy_data(const std::vector<SourceFile>& files, const std::filesystem::path& folder,
               Start& start);

class DisturbedRun {
 public:
  // `folder`: for all that the run writes, empty; `losses`: of each step, of the one that nobody
  // disturbs.
  DisturbedRun(Start start, std::filesystem::path folder, std::vector<double> losses);
  // Ends what runs.
  ~DisturbedRun();
  DisturbedRun(const DisturbedRun&) = delete;
  DisturbedRun& operator=(const DisturbedRun&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  const std::vector<std::filesystem::path>& data() const { return start_.data; }
  std::filesystem::path run_file() const { return folder_ / "run.h5"; }
  double timeout() const { return start_.timeout; }
  std::int64_t steps() const { return static_cast<std::int64_t>(losses_.size()); }

  // Begins from step 0, without any checkpoint.
  void begin_anew();
  // Starts it, to go on from its newest checkpoint. Waits until what ran before is gone.
  void start();
  // Takes what the run says for so long, or until `holds`; true if it does. Ends early where the
  // user wishes an end.
  template <class Condition>
  bool watch(double seconds, const Condition& holds);

  bool over() const { return !running_; }             // the outermost process has ended
  bool done() const { return over() && code_ == 0; }  // all steps are done
  int exit_code() const { return code_; }             // of that; 128 + the signal
  pid_t process() const { return process_; }          // that one
  Members members() const { return members_of(folder_); }
  std::int64_t next_step() const { return next_; }     // of the training under way
  std::int64_t farthest() const { return farthest_; }  // the most steps that were ever done
  std::int64_t begun() const { return begun_; }        // how often ranks have begun to train
  std::int64_t first_step() const { return first_; }   // of the training under way; -1: none yet
  // The first step whose loss was another one; -1: none.
  std::int64_t wrong() const { return wrong_; }
  void forgive();  // what was wrong so far

  // What it has said on both streams since mark().
  void mark();
  const std::string& said() const { return said_; }
  // The results and errors among that.
  std::vector<Json> lines() const;
  // What is wrong, as it says: an error's message, why it failed, or a line that tells people of a
  // file; empty: nothing.
  std::string complaint() const;
  bool failing() const;  // it has said that it failed

  // The numbers of the checkpoints that are there, ascending.
  std::vector<std::int64_t> checkpoint_steps() const;
  // What is wrong with the losses in the run file; empty: nothing, or there is no file yet.
  std::string wrong_in_run_file() const;
  // What is wrong with the run file of a run that is done, which has every step; empty: nothing.
  std::string wrong_in_whole_run_file() const;
  // What is wrong with the result of a run that is done; empty: nothing.
  std::string wrong_in_result() const;

  // Ends all its processes: by a signal that asks, then by force. False if some outlived the first.
  bool stop();
  // Waits until no process of it is left, and takes what they have said. False if some had to be
  // killed.
  bool clear_away(double seconds);

 private:
  void look(int milliseconds);
  void take_steps(const std::string& line);

  const Start start_;
  const std::filesystem::path folder_;
  const std::vector<double> losses_;
  int pipes_[3] = {-1, -1, -1};        // its two streams, and the agent's
  std::string said_, unread_, lines_;  // unread_: of the agent's pipe; lines_: of stdout
  pid_t process_ = -1;
  bool running_ = false;
  int code_ = 0;
  std::int64_t next_ = 0, farthest_ = 0, begun_ = 0, first_ = -1, wrong_ = -1;
};

// Makes a pipe of that name, which never comes to its end and which nobody waits for; throws Error
// if it cannot be made. What stands in it now.
int opened_pipe(const std::filesystem::path& path);
std::string all_in(int pipe);

double monotonic_seconds();
bool end_is_wished();
// `seconds`, multiplied by the number of programs that want each core (at least 1). It serves for
// how long the command waits before it gives up, never for what a run is required to do.
double at_this_load(double seconds);
// The library that makes the wall clock of a run's processes jump; it need not be there.
std::filesystem::path clock_library();
// The losses of a training's result; NaN where it has none for a step.
std::vector<double> losses_of(const Json& result);

template <class Condition>
bool DisturbedRun::watch(double seconds, const Condition& holds) {
  constexpr int a_while = 20;  // milliseconds
  const double until = monotonic_seconds() + seconds;
  for (;;) {
    look(a_while);
    if (holds()) return true;
    if (monotonic_seconds() >= until || end_is_wished()) return false;
  }
}

}  // namespace mw::chaos
