// Observers look on while a run goes, or take part between its steps: profilers, trackers of
// experiments, metrics, early ends. Checkpoints, checks and the run file are observers too. A
// plugin may bring one, and a script lists it: observers = { profiler { … } }.
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
#include "meshwright/instruction_time.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/registration.h"
#include "meshwright/world.h"

namespace mw {

class LossScaler;  // meshwright/engine/loss_scale.h

// When a segment of the timeline ran; of a braid, each of its lanes, from that lane's first
// instruction to its last.
struct RunTime {
  int segment = -1, microbatch = -1;
  double start = 0, end = 0;  // seconds since the step began
  int lane = 0;
};

// What one rank's step came to.
struct StepOutcome {
  double loss = 0;
  double grad_norm = 0;  // of all parameters, each element once, before clipping
  double lr = 0;
  double loss_scale = 1;         // LossScaler
  bool update_left_out = false;  // its parameters stay as they were: gradients overflowed
  bool not_finite = false;       // the loss or the norm; the update was left out too
  bool stop = false;             // some rank was asked to stop
  double began = 0;              // seconds of the clock that all ranks of the machine share
  std::vector<RunTime> runs;     // of the timeline
  // The times of each instruction that ran, in a step that is traced; else empty.
  std::vector<InstructionTime> instructions;
  std::vector<MemoryMoment> moments;
  // Seconds in the run's Watcher, and of the account itself, in a step of which one is taken.
  double watched = 0, tracing = 0;
};

class RankRun;

// What a rank shows while a step runs. Called in the rank's thread. It may read the tensors, and
// changes none.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // Forward: an output of an op, just computed. Backward: the whole gradient of an op's output,
  // just before the op's own backward reads it.
  virtual void computed(const Instruction& instruction, int slot, int microbatch,
                        const at::Tensor& tensor) = 0;
  // Forward: an operand of an op, just before it is computed.
  virtual void reads(const Instruction& /*instruction*/, int /*slot*/, int /*microbatch*/,
                     const at::Tensor& /*tensor*/) {}
  // What a move, a collective's wait or a copy has left in a slot.
  virtual void moved(const Instruction&, int /*slot*/, int /*microbatch*/, const at::Tensor&) {}
  // When the raw gradients are reduced, before clipping and the optimizer.
  virtual void gradients(RankRun& rank) = 0;
  // Around a step, with the rank whose program it runs, and after each run of a segment.
  virtual void begin(RankRun& /*rank*/, std::int64_t /*step*/) {}
  virtual void ran(int /*microbatch*/) {}
  virtual void ended() {}
};

// One rank of a run, in its own thread: its program, what it keeps, and collectives among the
// ranks. What is said to be collective is called by all ranks that hold parts, in the same order.
class RankRun {
 public:
  virtual ~RankRun() = default;

  virtual int rank() const = 0;
  virtual const Program& program() const = 0;
  virtual const Coordinates& coordinates() const = 0;
  virtual at::Device device() const = 0;
  virtual Ledger& ledger() = 0;

  // Collective. Returns when what the last step updates is updated and there: a step may leave
  // updates in host memory, and gathers of updated parameters, to the next one's forward
  // (Bucket::update_overlaps_forward, gather_overlaps_forward). What reads or fills by this
  // interface what a rank keeps calls it first, so that whoever reads on some ranks alone calls it
  // on all of them before; where that is asked inside of a step, as `check = true` does, they hide
  // behind nothing.
  virtual void await_updates() = 0;
  // What the rank keeps from step to step: by slot; a parameter; a parameter's gradient, made if
  // it is not there; the reduced gradient that the rank keeps of it (1-D, empty where none).
  virtual const at::Tensor& kept(int slot) = 0;
  virtual const at::Tensor& parameter(int index) = 0;
  virtual const at::Tensor& gradient(int index) = 0;
  virtual at::Tensor own_gradient(int index) const = 0;
  virtual const Bucket& bucket_of(int parameter) const = 0;
  // Takes a parameter's numbers, from local element `first` on, into all that holds of them.
  virtual void fill(int parameter, std::int64_t first, const at::Tensor& numbers) = 0;
  // What the gradients of the step are times, and its policy's state. Null: the bucket has no hook.
  virtual double loss_scale() const = 0;
  virtual LossScaler& scaler() = 0;
  virtual BucketReduction* hook_of(int bucket) = 0;

  // Collective. A bucket's whole gradients or parameters, gathered from their parts, and a
  // parameter's slice of these.
  virtual at::Tensor whole(int bucket, bool gradients) = 0;
  virtual at::Tensor slice(int parameter, const at::Tensor& whole) const = 0;
  // Collective. Brings a tensor that lies as `from` to `to`; in no phase of training. `batch`: the
  // size of that dim in what the tensor is of (Program::batch_of).
  virtual at::Tensor redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                                  const Layout& to, std::int64_t batch = 0) = 0;
  virtual Communicator& group(const RankSet& set) = 0;

  // Collective. One step; and a batch of RunSetup::held_out_data: its loss, and the wish to stop.
  virtual StepOutcome step(std::int64_t index, double lr) = 0;
  virtual StepOutcome evaluate(std::int64_t batch) = 0;
  // The rank as it computes evaluate(): null without held_out_plan.
  virtual RankRun* evaluator() = 0;
  // watch(): from the next step on the rank shows tensors to the watcher; unwatch() ends that. Both
  // are called between steps, and by no watcher. Several watchers are shown each tensor in the
  // order in which they began to watch. A step whose loss is not finite is computed a second time,
  // and shown a second time.
  virtual void watch(Watcher* watcher) = 0;
  virtual void unwatch(Watcher* watcher) = 0;
  // Whether the step's update is left out; known when Watcher::gradients is called.
  virtual bool update_left_out() const = 0;
  // From now on the update of a step whose loss or norm is not finite, though no loss scale
  // explains it, is left out on all ranks alike (StepOutcome::not_finite).
  virtual void leave_out_not_finite() = 0;
};

// What a rank's thread did from the end of one step to the end of the next, of which an account is
// taken.
struct StepAccount {
  // Seconds of an observer: between the two steps, or, where what it did is no part of any step's
  // time, in a mean step of the run so far.
  struct Observed {
    std::string name;
    double seconds = 0;
    bool apart = false;
  };
  double seconds = 0;               // all but what is apart; 0: no account was taken
  double step = 0;                  // of that, RankRun::step
  double watched = 0, tracing = 0;  // of the step (StepOutcome)
  double gathered = 0;              // what rank 0 waited for the reports of others
  std::vector<Observed> observed;
};

// The books of one rank after a step.
struct RankReport {
  int rank = 0;
  std::array<MemoryUse, category_count> memory{};
  std::int64_t peak_bytes = 0, peak_without_scratch = 0;
  std::map<CommunicationKey, CommunicationUse> communication;  // of this step
  std::map<WorkKey, WorkUse> work;                             // of this step
  // Rows that experts worked on, by layer and expert; and, of each stage's first rank, choices of
  // all ranks.
  std::map<std::pair<int, std::int64_t>, std::int64_t> rows, chosen;
  // Rows that its experts worked on over those that the program supposes; 0: it has none.
  double rows_share = 0;
  double began = 0;  // the rank's step: seconds of a clock that all ranks share
  std::vector<RunTime> runs;
  std::vector<InstructionTime> instructions;  // StepOutcome
  std::vector<MemoryMoment> moments;
  StepAccount account;
};

// An evaluation after a step: forward alone, on held-out data.
struct HeldOut {
  double loss = 0;     // mean of its batches
  double seconds = 0;  // wall time, no part of the step's
};

struct StepReport {
  std::int64_t step = 0;
  double seconds = 0;      // wall time of the step on the first rank
  double cpu_seconds = 0;  // of all processes
  double loss = 0, grad_norm = 0, lr = 0;
  double loss_scale = 1;
  bool update_left_out = false;  // as gradients overflowed
  std::int64_t tokens = 0;       // over all ranks
  std::vector<RankReport> ranks;
};

// Numbers of a step, by name.
using StepMetrics = std::vector<std::pair<std::string, double>>;

// The end of a step, as a rank tells it to its observers.
struct StepEnd {
  // The step's outcome: alike on all ranks except for the times, which are this rank's. The report
  // has taken its instructions and moments.
  const StepOutcome& outcome;
  std::int64_t step = 0;
  // No step follows. An observer that decides() may set it on rank 0; one of the program's own also
  // on all ranks alike.
  bool last = false;
  // The program's own observers set it, with `last`, if they have heard the wish to stop.
  bool stopped = false;
  // On rank 0, of all ranks; null on the others.
  std::shared_ptr<const StepReport> report;
  std::optional<HeldOut> held_out = {};  // on rank 0, if there was an evaluation
  // On rank 0: numbers of the step, which the run file and all other records of the run have beside
  // the loss. An observer may add some, of names that are not there yet.
  StepMetrics metrics = {};
  // An observer sets it if it did what is no part of any step's time.
  bool apart = false;
};

// Somebody who looks on or takes part between the steps. Each rank calls the observers in their
// order, in its own thread, so what they keep of a rank is theirs to separate; they may run
// collectives, as all ranks call alike. What they throw fails the rank.
class RunObserver : public Registered {
 public:
  virtual void begin(RankRun& /*rank*/) {}
  virtual void step(RankRun& /*rank*/, StepEnd& /*end*/) {}
  virtual void finish(RankRun& /*rank*/) {}
  // What its time is booked under where an account of a step is taken.
  std::string name() const override {
    const std::string registered = Registered::name();
    return registered.empty() ? "other observers" : registered;
  }
  // Whether step() may set StepEnd::last on rank 0 alone: the ranks then wait for it and hear it
  // before they go on to the next observer. The answer is the same on all ranks and never changes.
  virtual bool decides() const { return false; }
  // The run has failed, on every process: called once, by train(), when no rank runs any more.
  virtual void failed(const RankFailed& /*error*/) {}
};

// What an observer may depend on beside its own options.
struct ObservedRun {
  std::string name;  // of the run, as the script or its plan has it
  std::int64_t steps = 0;
  int ranks = 1;
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
