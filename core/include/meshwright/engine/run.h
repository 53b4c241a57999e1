// Runs of a plan: what one is given, what it is to those who look on or take part (RunObserver),
// and what is known after each step. The kernel trains; checkpoints, checks, evaluation, records
// and whatever else happens between steps are observers.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data.h"
#include "meshwright/engine/instruction_time.h"
#include "meshwright/engine/loss_scale.h"
#include "meshwright/engine/plan.h"
#include "meshwright/ledger.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/world.h"

namespace mw {

class Processes;  // meshwright/engine/processes.h

// Writes a part of a parameter's initial numbers (local sizes of `part`, any real dtype) to `out`.
using FillParameter = std::function<void(const Value& parameter, const std::vector<Range>& part,
                                         const at::Tensor& out)>;

// What a run is given. It outlives the run.
struct RunSetup {
  // The plan of the steps with the largest batch, and of all steps unless there are `step_plans`.
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const StepPlans> step_plans;  // null: every step has the same plan
  std::shared_ptr<const TokenSource> data;
  std::shared_ptr<const Optimizer> optimizer;
  std::function<double(std::int64_t step)> schedule;  // the learning rate of a step
  std::shared_ptr<const LossScale> loss_scale;        // null: none
  std::int64_t first_step = 0;                        // where the run goes on
  std::int64_t steps = 0;                             // the step before which the run ends
  // Initial parameters: written by `fill`, or, where it is null, drawn from the seed. With
  // `goes_on` an observer writes everything that a rank keeps in its begin().
  std::int64_t seed = 0;
  FillParameter fill;
  bool goes_on = false;
  // Samples that a run which goes on with another batch has had beyond those of its steps' numbers.
  std::int64_t sample_offset = 0;
  // What RankRun::evaluate computes: a program without a way back (forward_only()), on other data.
  std::shared_ptr<const Plan> held_out_plan;  // null: nothing is evaluated
  std::shared_ptr<const TokenSource> held_out_data;

  int threads = 0;  // of one rank's ops; 0: the cores over the ranks
  at::DeviceType device = at::kCPU;
  std::function<void()> load_device;  // brings the device's kernels; null: nothing is to be loaded
  std::int64_t memory = 0;            // bytes that a rank may hold; 0: no limit
  Ledger::LimitHint memory_hint;      // what to do if they do not suffice: for the ledger's message
  double timeout = 300;               // seconds that a collective waits for a rank
  std::vector<std::int64_t> trace;    // steps whose every instruction is timed; sorted
  bool account = false;               // of these steps: where the seconds of instructions went
  // What carries the ranks together; null: this process alone. A plan of one rank runs in each.
  Processes* processes = nullptr;

  // The number of a step's plan in `step_plans`; 0 is `plan`.
  int which_plan(std::int64_t step) const { return step_plans ? step_plans->of_step.at(step) : 0; }
  const Plan& plan_at(std::int64_t step) const {
    return step_plans ? *step_plans->plans[which_plan(step)] : *plan;
  }
  // The plans of its steps, each once.
  std::vector<const Plan*> plans() const {
    if (!step_plans) return {plan.get()};
    std::vector<const Plan*> all;
    for (const auto& each : step_plans->plans) all.push_back(each.get());
    return all;
  }
  std::int64_t first_sample(std::int64_t step) const {
    return sample_offset + (step_plans ? step_plans->first.at(step) : step * plan->request.batch);
  }
};

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

// What a rank shows while a step runs. Called in the rank's thread.
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
  virtual void watch(Watcher* watcher) = 0;
  // Whether the step's update is left out; known when Watcher::gradients is called.
  virtual bool update_left_out() const = 0;
  // From now on the update of a step whose loss or norm is not finite, though no loss scale
  // explains it, is left out on all ranks alike (StepOutcome::not_finite).
  virtual void leave_out_not_finite() = 0;
};

// A whole tensor of these dims with every dim in its own order, where a strategy permutes the
// elements of one (Draft::permute_tokens).
at::Tensor in_own_order(const Program& program, at::Tensor whole, const Dims& dims);

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
  std::int64_t peak_bytes = 0;
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
  std::vector<RankReport> ranks;
  std::optional<HeldOut> held_out = {};
};

// The end of a step, as a rank tells it to its observers.
struct StepEnd {
  const StepOutcome& outcome;  // the same on all ranks, but for its times
  std::int64_t step = 0;
  // No step follows. An observer may set it: on all ranks alike, or, if it decides(), on rank 0.
  bool last = false;
  // An observer sets it, with `last`, if it has heard the wish to stop: on all ranks alike.
  bool stopped = false;
  // On rank 0, of all ranks; null on the others.
  StepReport* report = nullptr;
  // An observer sets it if it did what is no part of any step's time.
  bool apart = false;
};

// Somebody who looks on or takes part between the steps. Each rank calls the observers in their
// order, in its own thread, so what they keep of a rank is theirs to separate; they may run
// collectives, as all ranks call alike. What they throw fails the rank.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void begin(RankRun& /*rank*/) {}
  virtual void step(RankRun& /*rank*/, StepEnd& /*end*/) {}
  virtual void finish(RankRun& /*rank*/) {}
  // What its time is booked under where an account of a step is taken.
  virtual const char* name() const { return "other observers"; }
  // Whether step() may set StepEnd::last on rank 0 alone: the ranks then wait for it and hear it
  // before they go on to the next observer.
  virtual bool decides() const { return false; }
  // The run has failed, on every process: called once, by train(), when no rank runs any more.
  virtual void failed(const RankFailed& /*error*/) {}
};

// Calls a function on rank 0 after each step; the run ends after the step of which it returns true.
class OnStep : public RunObserver {
 public:
  explicit OnStep(std::function<bool(const StepReport& report)> call) : call_(std::move(call)) {}
  void step(RankRun& /*rank*/, StepEnd& end) override {
    if (end.report != nullptr && call_(*end.report)) end.last = true;
  }
  bool decides() const override { return true; }

 private:
  const std::function<bool(const StepReport&)> call_;
};

struct TrainOutcome {
  bool interrupted = false;
  std::int64_t steps = 0;  // finished
};

// Runs the steps of a run, in all of its processes alike. Throws Error (plan) before any rank
// starts if there are too many, RankFailed if one fails; what observers heard until then stands.
// `stop`: set, in any process, to end after the current step; may be null.
TrainOutcome train(const RunSetup& setup, std::span<RunObserver* const> observers,
                   const std::atomic<bool>* stop);

}  // namespace mw
