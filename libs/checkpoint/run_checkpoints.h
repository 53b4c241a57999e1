// The checkpoints of a run: fills its ranks from one before the first step, and writes others after
// steps.
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

// The slice of a parameter, or of an optimizer state of a parameter, that a rank keeps.
struct KeptSlice {
  std::string tensor;               // the tensor's name in a checkpoint
  std::vector<std::int64_t> shape;  // shape of the whole tensor
  Slice slice;                      // never empty
  int slot = -1;                    // the flat slot that holds the slice
  std::int64_t first = 0;           // the slice's first element in the slot
  bool writes = false;              // this rank writes it for all ranks that keep the same slice
  bool of_parameter = false;        // it is the parameter itself, and no state
};

// All slices that a rank keeps, in the order of slots and within them. Parameters are the numbers
// that the optimizer updates: the masters, where there are any.
std::vector<KeptSlice> kept_slices(const RankView& rank);

// A parameter's shape, and the box of it that the rank computes with, or of which it has a shard.
struct ParameterPlace {
  std::string name;
  std::vector<std::int64_t> shape;
  Box box;
};
ParameterPlace place_of(const RankView& rank, int parameter);

// The value of CheckpointIndex::chosen for a plan.
Json chosen_of(const Plan& plan);

// What a checkpoint remembers of a step that is done.
struct PastStep {
  double seconds = 0, loss = 0, grad_norm = 0, lr = 0, loss_scale = 1;
  bool left_out = false;
  bool has_labels = true;  // some label of the step counts
};
struct PastEvaluation {
  std::int64_t step = 0;
  double loss = 0, seconds = 0;
};

// The outcome of writing a checkpoint. `waited`: seconds that rank 0's steps waited for its copy,
// and for the checkpoint before it if that was still being written.
struct CheckpointReport {
  CheckpointNews news;
  double waited = 0;
};

class Checkpoints : public RunObserver {
 public:
  struct Setup {
    std::shared_ptr<const Checkpoint> from;    // resumed from; null: the run begins anew
    std::shared_ptr<CheckpointFolder> folder;  // null: nothing is written, or by another process
    std::vector<std::int64_t> stale;           // steps of checkpoints that go once one is complete
    Json settings;                             // value of CheckpointIndex::settings
    std::string name, hash, started_by;        // values of the fields in CheckpointIndex
    std::string path;                          // the folder of checkpoints
    std::string mark;                          // CheckpointFolder::mark() of the first process
    std::int64_t every = 0;                    // steps from one to the next; 0: only at the end
    std::int64_t keep = 0;                     // number of newest checkpoints kept; 0: all
    std::vector<int> here;                     // ranks of this process
    bool writes = false;
  };
  // The object refers to `run`, which must outlive it.
  Checkpoints(const RunSetup& run, Setup setup);
  ~Checkpoints() override;

  // The step that the run begins with; the steps before it, oldest first; evaluations after those.
  std::int64_t first_step() const { return first_step_; }
  const std::vector<PastStep>& past() const { return past_; }
  const std::vector<PastEvaluation>& past_evaluations() const { return past_evaluations_; }
  // A text for people: what was not taken over from the checkpoint; empty: all was.
  std::string left_behind() const;

  // Fills the rank's parameters and states from the checkpoint, if there is one.
  void begin(RankRun& executor) override;
  // Remembers the step. If a checkpoint is due after it, copies what the rank keeps.
  void step(RankRun& executor, StepEnd& end) override;
  std::string name() const override { return "checkpoint"; }
  // Rank 0 calls the function before it copies, so that other records of the steps are saved too.
  void before_copies(std::function<void()> call) { before_ = std::move(call); }
  // Called on rank 0: notes a step that is done, and an evaluation after it.
  void note(const PastStep& step);
  void note(const PastEvaluation& evaluation);

  // The checkpoint that the run went on from; null: it began anew.
  const Checkpoint* from() const { return setup_.from.get(); }
  // Waits for the checkpoint that is being written. Any thread may call it when no rank runs.
  void complete();
  // Ends writing after a run that failed: a checkpoint that not all ranks have handed over is
  // dropped.
  void break_off();
  // What has come of checkpoints since the last call.
  std::vector<CheckpointReport> reports();

  // The approximate size in bytes of a checkpoint of this plan.
  static std::int64_t bytes_of(const Plan& plan);

 private:
  bool due(const StepEnd& end) const;
  // The slices that a rank copies, and the buffer for the copies, reused each time.
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
  std::vector<PastStep> past_;  // only rank 0 writes to it once the ranks run
  std::vector<PastEvaluation> past_evaluations_;
  std::mutex mutex_;  // guards the members below
  std::map<int, Rank> ranks_;
  std::map<std::int64_t, double> waited_;
  std::vector<CheckpointReport> reports_;
  std::unique_ptr<CheckpointWriter> writer_;
};

}  // namespace mw
