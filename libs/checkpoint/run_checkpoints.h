// The checkpoints of a run: what its ranks take from one before the first step, and write after
// others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/rank_contents.h"
#include "checkpoint/writer.h"
#include "run/executor.h"
#include "script/experiment.h"

namespace mw {

// A step that is done, as a checkpoint remembers it.
struct PastStep {
  double seconds = 0, loss = 0, grad_norm = 0, lr = 0, loss_scale = 1;
  bool left_out = false;
};
struct PastEvaluation {
  std::int64_t step = 0;
  double loss = 0, seconds = 0;
};

// What has come of a checkpoint, and how long rank 0's steps waited for it: for the copy, and for
// the one before if that was still under way.
struct CheckpointReport {
  CheckpointNews news;
  double waited = 0;
};

// What the ranks' step came to: all of them have the same.
struct StepEnd {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0;
  bool left_out = false;
  bool last = false;  // no step follows
};

class Checkpoints {
 public:
  struct Setup {
    std::shared_ptr<const Checkpoint> from;    // null: the run begins anew
    std::shared_ptr<CheckpointFolder> folder;  // null: nothing is written, or by another process
    std::vector<std::int64_t> stale;           // CheckpointWriter::Setup
    Json settings;                             // CheckpointIndex
    std::vector<int> here;                     // ranks of this process
    bool writes = false;
  };
  // The experiment outlives this.
  Checkpoints(const Experiment& experiment, Setup setup);
  ~Checkpoints();

  // The step that the run begins with; those before, oldest first; evaluations after them.
  std::int64_t first_step() const { return first_step_; }
  const std::vector<PastStep>& past() const { return past_; }
  const std::vector<PastEvaluation>& past_evaluations() const { return past_evaluations_; }
  // What was not taken from the checkpoint, for people; empty: nothing.
  std::string left_behind() const;

  // The rest: called by every rank that is here, in its own thread.
  // Before the first step: fills what the rank keeps.
  void begin(Executor& executor);
  // Of rank 0, of each step, before after().
  void note(const PastStep& step);
  void note(const PastEvaluation& evaluation);
  // Whether a checkpoint follows such a step.
  bool due(const StepEnd& end) const;
  // After each step; false if no checkpoint is due.
  bool after(Executor& executor, const StepEnd& end);

  // The checkpoint that the run went on from; null: it began anew.
  const Checkpoint* from() const { return setup_.from.get(); }
  // Waits for what is under way; from any thread, when no rank runs.
  void finish();
  // ... of a run that failed: what not all ranks have given is dropped.
  void break_off();
  // Since the last call.
  std::vector<CheckpointReport> reports();

  // Of a checkpoint of this experiment, about.
  static std::int64_t bytes_of(const Experiment& experiment);

 private:
  // What a rank copies from, and to: a buffer of its own, the same each time.
  struct Rank {
    std::unique_ptr<RankView> view;
    std::vector<KeptSlice> kept;
    std::vector<char> buffer;
  };
  Rank& rank_of(Executor& executor);
  void load(Executor& executor, Rank& rank) const;
  void load_parameters(Executor& executor, const Rank& rank) const;
  void load_hooks(Executor& executor) const;
  Error of_another_hook(int bucket, std::size_t which, const at::Tensor& there,
                        const at::Tensor& here) const;
  std::vector<StoredPiece> copies(Executor& executor, Rank& rank) const;
  std::vector<StoredPiece> history() const;
  CheckpointIndex facts(Executor& executor, std::int64_t step) const;
  void read_history();
  bool same_mix() const;

  const Experiment& experiment_;
  const Setup setup_;
  std::int64_t first_step_ = 0;
  std::vector<PastStep> past_;  // rank 0's to write, once the ranks run
  std::vector<PastEvaluation> past_evaluations_;
  std::mutex mutex_;  // of what follows
  std::map<int, Rank> ranks_;
  std::map<std::int64_t, double> waited_;
  std::vector<CheckpointReport> reports_;
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace mw
