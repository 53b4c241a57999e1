// The checkpoints of a run: what its ranks take from one before the first step, and write after
// others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/slices.h"
#include "checkpoint/writer.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"

namespace mw {

// A parameter's numbers, or a state of the optimizer for it, as far as a rank keeps it.
struct KeptSlice {
  std::string tensor;               // its name in a checkpoint
  std::vector<std::int64_t> shape;  // of all of it
  Slice slice;                      // never empty
  int slot = -1;                    // the flat slot that has it ...
  std::int64_t first = 0;           // the slice begins at this element
  bool writes = false;              // of the ranks that keep the same, it is the first
};

// In the order of slots and of what lies in them. Numbers are those that the optimizer updates:
// masters where there are such.
std::vector<KeptSlice> kept_slices(const RankView& rank);

// A parameter's place: its shape, and the box of it that the rank computes with or has a shard of.
struct ParameterPlace {
  std::string name;
  std::vector<std::int64_t> shape;
  Box box;
};
ParameterPlace place_of(const RankView& rank, int parameter);

// CheckpointIndex::chosen of a plan.
Json chosen_of(const Plan& plan);

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

class Checkpoints : public RunObserver {
 public:
  struct Setup {
    std::shared_ptr<const Checkpoint> from;    // null: the run begins anew
    std::shared_ptr<CheckpointFolder> folder;  // null: nothing is written, or by another process
    std::vector<std::int64_t> stale;           // CheckpointWriter::Setup
    Json settings;                             // CheckpointIndex
    std::string name, hash, started_by;        // likewise
    std::string path;                          // of the folder
    std::string mark;                          // CheckpointFolder::mark() of the first process
    std::int64_t every = 0;                    // steps; 0: at the end alone
    std::int64_t keep = 0;                     // of the newest; 0: all
    std::vector<int> here;                     // ranks of this process
    bool writes = false;
  };
  // The run outlives this.
  Checkpoints(const RunSetup& run, Setup setup);
  ~Checkpoints() override;

  // The step that the run begins with; those before, oldest first; evaluations after them.
  std::int64_t first_step() const { return first_step_; }
  const std::vector<PastStep>& past() const { return past_; }
  const std::vector<PastEvaluation>& past_evaluations() const { return past_evaluations_; }
  // What was not taken from the checkpoint, for people; empty: nothing.
  std::string left_behind() const;

  // Fills what the rank keeps.
  void begin(RankRun& executor) override;
  // Remembers the step and, if a checkpoint follows it, copies what the rank keeps.
  void step(RankRun& executor, StepEnd& end) override;
  std::string name() const override { return "checkpoint"; }
  // What rank 0 does before it copies, so that whatever else is kept of the steps is no less.
  void before_copies(std::function<void()> call) { before_ = std::move(call); }
  // Notes, on rank 0 and before step(), a step that is done, and an evaluation after it.
  void note(const PastStep& step);
  void note(const PastEvaluation& evaluation);

  // The checkpoint that the run went on from; null: it began anew.
  const Checkpoint* from() const { return setup_.from.get(); }
  // Waits for what is under way; from any thread, when no rank runs.
  void complete();
  // The same of a run that failed: what not all ranks have given is dropped.
  void break_off();
  // Since the last call.
  std::vector<CheckpointReport> reports();

  // About the bytes of a checkpoint of this plan.
  static std::int64_t bytes_of(const Plan& plan);

 private:
  bool due(const StepEnd& end) const;
  // What a rank copies from, and to: a buffer of its own, the same each time.
  struct Rank {
    std::unique_ptr<RankView> view;
    std::vector<KeptSlice> kept;
    std::vector<char> buffer;
  };
  Rank& rank_of(RankRun& executor);
  void load(RankRun& executor, Rank& rank) const;
  void load_parameters(RankRun& executor, const Rank& rank) const;
  void load_hooks(RankRun& executor) const;
  Error of_another_hook(int bucket, std::size_t which, const at::Tensor& there,
                        const at::Tensor& here) const;
  std::vector<StoredPiece> copies(RankRun& executor, Rank& rank) const;
  std::vector<StoredPiece> history() const;
  CheckpointIndex facts(RankRun& executor, std::int64_t step) const;
  void read_history();
  bool same_mix() const;

  const RunSetup& run_;
  std::function<void()> before_;
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
