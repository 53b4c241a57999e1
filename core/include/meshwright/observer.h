// The interface of observers, which watch a run, or act between its steps: profilers, experiment
// trackers, metrics, early stopping. Checkpoints, checks and the run file are observers too. A
// plugin may implement one, and a script lists it: observers = { profiler { … } }.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/data.h"
#include "meshwright/instruction_time.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/registration.h"
#include "meshwright/world.h"

namespace mw {

class LossScaler;  // meshwright/engine/loss_scale.h

// The time of one segment run of the timeline. A braid has one for each lane, from the lane's first
// instruction to its last.
struct RunTime {
  int segment = -1, microbatch = -1;
  double start = 0, end = 0;  // seconds since the step began
  int lane = 0;
};

// The result of a step on one rank.
struct StepOutcome {
  double loss = 0;
  double grad_norm = 0;  // norm of the gradients of all parameters, before clipping
  double lr = 0;
  double loss_scale = 1;    // LossScaler::scale()
  std::int64_t labels = 0;  // labels of the step that count in the loss; 0: there is no loss
  // Gradients overflowed, or no label counts, so that the parameters stay as they were.
  bool update_left_out = false;
  bool not_finite = false;    // the loss or the norm is not finite, and the update is left out
  bool stop = false;          // some rank was asked to stop
  double began = 0;           // start, in seconds of a clock that the machine's ranks share
  std::vector<RunTime> runs;  // one for each segment run (and lane) of the timeline
  // The times of all instructions, and the memory after them, in a traced step; else empty.
  std::vector<InstructionTime> instructions;
  std::vector<MemoryMoment> moments;
  // Seconds spent in the run's Watcher, and on the account itself, if an account is taken.
  double watched = 0, tracing = 0;
};

class RankRun;

// Sees the tensors of a rank while a step runs. Called in the rank's thread. A watcher may read the
// tensors, but must not change them. A call of a plugin's watcher must return within the
// experiment's `timeout` seconds, as its observer's calls must.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // Called in forward with each output of an op, once it is computed; in backward with the whole
  // gradient of an op's output, just before the op's own backward reads it.
  virtual void computed(const Instruction& instruction, int slot, int microbatch,
                        const at::Tensor& tensor) = 0;
  // Called in forward with each operand of an op, just before the op is computed.
  virtual void reads(const Instruction& /*instruction*/, int /*slot*/, int /*microbatch*/,
                     const at::Tensor& /*tensor*/) {}
  // Called with the result of a move, of a collective (after its wait) or of a copy.
  virtual void moved(const Instruction&, int /*slot*/, int /*microbatch*/, const at::Tensor&) {}
  // Called when all gradients are reduced, before clipping and the optimizer.
  virtual void gradients(RankRun& rank) = 0;
  // Called before a step, after each segment run, and after a step.
  virtual void begin(RankRun& /*rank*/, std::int64_t /*step*/) {}
  virtual void ran(int /*microbatch*/) {}
  virtual void ended() {}
};

// One rank of a run, for code in the rank's own thread: its program, its lasting tensors, and
// collectives. A method that is marked as collective must be called by all ranks that hold parts,
// in the same order.
class RankRun {
 public:
  virtual ~RankRun() = default;

  virtual int rank() const = 0;
  virtual const Program& program() const = 0;
  virtual const Coordinates& coordinates() const = 0;
  virtual at::Device device() const = 0;
  virtual Ledger& ledger() = 0;

  // Collective. Completes the updates of the last step: a step may leave updates in host memory,
  // and gathers of updated parameters, to the next step's forward (Bucket::update_overlaps_forward,
  // gather_overlaps_forward). Methods that read or fill lasting tensors call it themselves. Code
  // that reads on some ranks only must therefore call it on all ranks before. Inside of a step, as
  // with `check = true`, these updates and gathers then overlap with nothing.
  virtual void await_updates() = 0;
  // Lasting tensors of the rank: that of a slot; a parameter; a parameter's gradient, which is
  // allocated if it does not exist; the part of a parameter's reduced gradient that the rank keeps
  // (1-D, empty if there is none).
  virtual const at::Tensor& kept(int slot) = 0;
  virtual const at::Tensor& parameter(int index) = 0;
  virtual const at::Tensor& gradient(int index) = 0;
  virtual at::Tensor own_gradient(int index) const = 0;
  virtual const Bucket& bucket_of(int parameter) const = 0;
  // Writes values of a parameter, from local element `first` on, to all of the rank's tensors that
  // hold these elements (parameter, shard, master).
  virtual void fill(int parameter, std::int64_t first, const at::Tensor& numbers) = 0;
  // The factor of this step's gradients: the loss scale, times the replicas if these differ.
  virtual double loss_scale() const = 0;
  virtual LossScaler& scaler() = 0;                  // the state of the loss scale
  virtual BucketReduction* hook_of(int bucket) = 0;  // null: the bucket has no reduction hook

  // whole() is collective: it gathers a bucket's whole gradients or parameters. slice() returns the
  // part of a parameter in that tensor.
  virtual at::Tensor whole(int bucket, bool gradients) = 0;
  virtual at::Tensor slice(int parameter, const at::Tensor& whole) const = 0;
  // Collective. Moves a tensor from one layout to another; the ledger books it under no phase of
  // training. `batch`: the size of the dim "batch" for this tensor (Program::batch_of).
  virtual at::Tensor redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                                  const Layout& to, std::int64_t batch = 0) = 0;
  // A whole tensor of a microbatch with the elements of every dim in their natural order, which a
  // strategy may have changed (Draft::permute_tokens, part_documents).
  virtual at::Tensor in_own_order(at::Tensor whole, const Dims& dims, int microbatch) const = 0;
  virtual Communicator& group(const RankSet& set) = 0;

  // Collective. step() runs one training step. evaluate() computes a batch of
  // RunSetup::held_out_data; only `loss` and `stop` of the outcome are set.
  virtual StepOutcome step(std::int64_t index, double lr) = 0;
  virtual StepOutcome evaluate(std::int64_t batch) = 0;
  // The RankRun of evaluate(), with its own program; null without RunSetup::held_out_plan.
  virtual RankRun* evaluator() = 0;
  // watch() adds a watcher from the next step on; unwatch() removes it. Both are called between
  // steps, and never by a watcher. Several watchers see each tensor in the order in which they were
  // added. A step whose loss is not finite is computed, and shown to watchers, a second time.
  virtual void watch(Watcher* watcher) = 0;
  virtual void unwatch(Watcher* watcher) = 0;
  // Whether the step's update is left out; known when Watcher::gradients is called.
  virtual bool update_left_out() const = 0;
  // From now on, all ranks leave out the update of a step whose loss or norm is not finite
  // (StepOutcome::not_finite), also without a loss scale.
  virtual void leave_out_not_finite() = 0;
};

// The account of a step: how a rank's thread spent its time from the end of the last step to the
// end of this one.
struct StepAccount {
  // Seconds that an observer took between the two steps. If `apart`, its work is no part of any
  // step's time, and `seconds` is its mean per step of the run so far.
  struct Observed {
    std::string name;
    double seconds = 0;
    bool apart = false;
  };
  double seconds = 0;               // the whole time, without what is `apart`; 0: no account
  double step = 0;                  // part of `seconds`: RankRun::step
  double watched = 0, tracing = 0;  // parts of `step`, from StepOutcome
  double gathered = 0;              // time in which rank 0 waited for the reports of other ranks
  std::vector<Observed> observed;
};

// The measurements of one rank after a step.
struct RankReport {
  int rank = 0;
  std::array<MemoryUse, category_count> memory{};
  std::int64_t peak_bytes = 0, peak_without_scratch = 0;
  std::map<CommunicationKey, CommunicationUse> communication;  // of this step
  std::map<WorkKey, WorkUse> work;                             // of this step
  // By layer and expert: `rows` on which the rank's experts worked; `chosen`, on the first rank of
  // each stage only, how often the tokens of all ranks chose the expert.
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows, chosen;
  // Rows on which the rank's experts worked, divided by the rows that the program supposes; 0: the
  // rank has no experts.
  double rows_share = 0;
  double began = 0;  // start of the step, in seconds of a clock that all ranks share
  std::vector<RunTime> runs;
  std::vector<InstructionTime> instructions;  // in a traced step (StepOutcome)
  std::vector<MemoryMoment> moments;
  StepAccount account;
};

// An evaluation after a step: forward alone, on held-out data.
struct HeldOut {
  double loss = 0;     // mean loss of the labels that count in the batches
  double seconds = 0;  // wall time, which is no part of the step's
};

// The report of a step, over all ranks.
struct StepReport {
  std::int64_t step = 0;
  double seconds = 0;                      // wall time of the step on the first rank
  double cpu_seconds = 0;                  // CPU time of all processes
  double loss = 0, grad_norm = 0, lr = 0;  // loss: NaN if no label counts
  double loss_scale = 1;
  bool update_left_out = false;  // gradients overflowed, or no label counts
  std::int64_t tokens = 0;       // tokens of the step over all ranks
  std::int64_t labels = 0;       // labels that count in the loss; 0: there is no loss
  std::vector<RankReport> ranks;
};

// Names and values of a step's metrics.
using StepMetrics = std::vector<std::pair<std::string, double>>;

// The end of a step, as a rank's observers see it and may change it.
struct StepEnd {
  // The outcome of the step, the same on all ranks except for the times, which are this rank's. Its
  // instructions and moments were moved to the report.
  const StepOutcome& outcome;
  std::int64_t step = 0;
  // Whether the run ends after this step. An observer that decides() may set it on rank 0. The
  // program's own observers may also set it on all ranks.
  bool last = false;
  // Set by the program's own observers, with `last`, if the user has asked to stop.
  bool stopped = false;
  // On rank 0: the report of all ranks; null on other ranks.
  std::shared_ptr<const StepReport> report;
  std::optional<HeldOut> held_out = {};  // on rank 0, if there was an evaluation
  // On rank 0: metrics of the step, which the run file and other records keep beside the loss. An
  // observer may add metrics with new names. A plugin's observer that adds some on another rank
  // fails the run.
  StepMetrics metrics = {};
  // Set by an observer whose work after this step is no part of any step's time.
  bool apart = false;
};

// An observer of a run. All ranks call the observers in the same order, each in its own thread, so
// an observer may run collectives, and must keep the data of different ranks apart. An exception of
// an observer fails the rank.
class RunObserver : public Registered {
 public:
  virtual void begin(RankRun& /*rank*/) {}
  virtual void step(RankRun& /*rank*/, StepEnd& /*end*/) {}
  virtual void finish(RankRun& /*rank*/) {}
  // The name under which the account of a step lists the observer's time.
  std::string name() const override {
    const std::string registered = Registered::name();
    return registered.empty() ? "other observers" : registered;
  }
  // Whether step() may set StepEnd::last on rank 0 alone. If so, all ranks wait for rank 0's value
  // before they call the next observer. The answer is the same on all ranks and never changes.
  virtual bool decides() const { return false; }
  // Called once on every process if the run has failed, when no rank runs any more. A plugin's is
  // called in a thread of its own, and left behind if it does not return within `timeout` seconds.
  virtual void failed(const RankFailed& /*error*/) {}
};

// What an observer may depend on beside its own options.
struct ObservedRun {
  std::string name;  // name of the run, from the script, or else from its plan
  std::int64_t steps = 0;
  int ranks = 1;
  std::vector<SourceFile> files = {};  // that its tokens come from
};

// A plugin's observer is made by a constructor (const Values&, const ObservedRun&), once in each
// process and before any rank starts. The constructor opens no file, because `plan` and other verbs
// call it too; begin() may open files.
template <>
struct KindOf<RunObserver> {
  static constexpr Kind kind = Kind::observer;
  using Make = std::unique_ptr<RunObserver>(const Values& values, const ObservedRun& run);
};
template <class Class>
constexpr Registration observer(const char* name = nullptr, const char* doc = nullptr) {
  return registration<RunObserver, Class>(name, doc);
}

}  // namespace mw
