// Runs a program's step on one rank, instruction by instruction, in the rank's own thread.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/step_clock.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"
#include "meshwright/world.h"
#include "run/account_clock.h"
#include "run/host_copy.h"
#include "run/lowered.h"
#include "run/storage.h"

namespace mw {

// Seconds of the clock and of the process' cores, at one moment.
struct Moment {
  double wall = 0, cpu = 0;
};

class Executor : public RankRun {
 public:
  // Allocates the rank's storage; or shares storage and communicators with `first`, the executor of
  // another program of the same stage. The references must outlive it. `setup` says which data,
  // rate and program each step has: program 0 is `program`, n the n-th that was given to
  // add_program(). `forward_only`: nothing is updated, and the steps are no steps of the run.
  Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
           Ledger& ledger, const RunSetup& setup, const std::atomic<bool>* stop,
           const Executor* first = nullptr, bool forward_only = false);
  // Another program of the same stage, for steps with other microbatches. It keeps the same
  // parameters in the same tensors and must outlive the executor.
  void add_program(const Program& program);
  // Sets evaluate()'s program, without backward (forward_only() in engine/plan.h), on other data.
  // It shares storage.
  void evaluate_by(const Program& program, const RunSetup& setup);
  // Adds the program of what outer steps do after a step (outer_plan).
  void add_outer(const Program& program, const OuterEvent& event);
  // Makes the communicators of all programs. Every rank calls it once it has all of its programs.
  void connect();

  StepOutcome step(std::int64_t index, double lr) override;
  // Runs evaluate_by()'s program on one batch. The ledger books it like a step.
  StepOutcome evaluate(std::int64_t batch) override;
  RankRun* evaluator() override { return evaluator_.get(); }
  // When the ranks last met for a step's totals, as this rank saw it once it had a core again; only
  // where they run in turns.
  const Moment& met() const { return kept_->met; }

  const Program& program() const override { return program_; }
  const Coordinates& coordinates() const override { return at_; }
  int rank() const override { return rank_; }
  at::Device device() const override { return device_; }
  Ledger& ledger() override { return ledger_; }
  const at::Tensor& kept(int slot) override {
    await_updates();
    return storage_[slot];
  }
  const at::Tensor& parameter(int index) override {
    await_updates();
    return storage_.parameter(index);
  }
  void await_updates() override;
  const at::Tensor& gradient(int index) override { return storage_.gradient(index); }
  at::Tensor own_gradient(int index) const override { return storage_.own_gradient(index); }
  const Bucket& bucket_of(int index) const override { return storage_.bucket_of(index); }
  void fill(int index, std::int64_t first, const at::Tensor& numbers) override {
    await_updates();
    storage_.fill(index, first, numbers);
  }
  double loss_scale() const override { return kept_->scaler.scale() * program_.replicas(); }
  LossScaler& scaler() override { return kept_->scaler; }
  BucketReduction* hook_of(int bucket) override { return kept_->hooks.at(bucket).get(); }
  bool update_left_out() const override { return outcome_.update_left_out; }
  void watch(Watcher* watcher) override;
  void unwatch(Watcher* watcher) override;
  void leave_out_not_finite() override { kept_->leaves_out = true; }
  Communicator& group(const RankSet& set) override { return group(set, ""); }
  at::Tensor whole(int bucket, bool gradients) override;
  at::Tensor slice(int parameter, const at::Tensor& whole) const override {
    return storage_.slice(parameter, whole);
  }
  at::Tensor redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                          const Layout& to, std::int64_t batch) override;
  at::Tensor in_own_order(at::Tensor whole, const Dims& dims, int microbatch) const override;
  // The experts' loads that this step has counted, by layer and element; empty on all but the first
  // rank of a stage.
  std::map<std::pair<int, std::int64_t>, std::int64_t> expert_loads();

 private:
  // The numbers of a step, beside its gradients, that an update of this step needs.
  struct UpdateNumbers {
    double lr = 0;
    std::int64_t step = 0;  // steps before it that were not left out
    double scale = 1;       // factor of the gradients: clipping over loss scale
    bool left_out = true;
  };
  // The updates that a step has left to the forward of the next one. Before the first step these
  // numbers say `left_out`, so that its forward sends what every step's does and updates nothing.
  struct Left {
    UpdateNumbers numbers;
    bool any = false;        // whether a step has left any
    std::vector<bool> made;  // by bucket: whether its update has been made since
  };
  // A transfer that was begun; `microbatch` is -1 for a transfer of the step.
  struct Begun {
    const Lowered* start;
    int microbatch;
    Underway underway;
  };
  // What stays from step to step beside the storage, whichever program a step has.
  struct Kept {
    explicit Kept(std::shared_ptr<const LossScale> policy) : scaler(std::move(policy)) {}
    LossScaler scaler;
    bool leaves_out = false;  // leaves out updates of steps that are not finite
    std::map<Connection, std::unique_ptr<Communicator>> communicators;
    // By bucket: what runs its reduction hook and its gather hook; null: it has no such hook.
    std::vector<std::unique_ptr<BucketReduction>> hooks;
    std::vector<std::unique_ptr<BucketGather>> gathers;
    std::vector<Begun> begun;  // transfers not awaited yet
    Left left;
    Moment met;
  };
  // Rows of sparse tensors in one layout: how many of each group, and,
  // where they came by an exchange, from whom.
  struct Rows {
    bool known = false;
    std::vector<std::int64_t> of_group;
    std::vector<std::vector<std::int64_t>> from;  // by rank of the exchange and group
  };
  // The tensors and rows of a microbatch; empty between steps.
  struct Microbatch {
    int number = -1;
    std::vector<at::Tensor> slots;
    std::vector<Rows> rows;  // by Operand::rows
  };
  // An entry of the timeline, with its lowered code.
  struct TimelineRun {
    int segment;
    std::vector<Microbatch*> lanes;
    std::vector<Lowered>* code;
  };
  Communicator& communicator(const Connection& connection);
  Communicator& group(const RankSet& set, const std::string& stream);
  Communicator& group(Lowered& l);
  void find_pairs(Lowered& l);
  StepOutcome own_step(std::int64_t index, double lr);
  void read_times();
  void find_runs();
  void run_part(const TimelineRun& part, bool traced);
  void run_traced(Lowered& l, Microbatch& m, int segment);
  void run(Lowered& l, Microbatch& m);
  void carry_out(Lowered& l, Microbatch& m);
  // Waits for the copies to and from host memory whose tensors the instruction reads, overwrites or
  // frees.
  void touch(const Lowered& l, const Microbatch& m);
  void load(const Lowered& l, Microbatch& m);
  at::Tensor load_rows(const Loaded& one, const Microbatch& m) const;
  at::Tensor read_input(const std::string& name, const std::vector<std::int64_t>& numbers) const;
  // How many labels of the step count.
  std::int64_t labels_of_step() const;
  at::Tensor read_divisors(const LossDivisor& divisor,
                           const std::vector<std::int64_t>& numbers) const;
  template <class Write>
  at::Tensor index_rows(const std::vector<std::int64_t>& numbers, const Write& write) const;
  at::Tensor read_starts(const std::vector<std::int64_t>& numbers) const;
  at::Tensor read_places(const std::vector<std::int64_t>& numbers) const;
  at::Tensor read_draws(const std::vector<std::int64_t>& numbers) const;
  std::vector<std::int64_t> samples_of(int microbatch, const Range& rows) const;
  // The order in which the tokens of a sample lie whose documents are parted.
  std::vector<Range> order_of(std::int64_t number) const;
  // Brings the whole rows of some samples into this order. `at`: the dim seq.
  void part_documents(const at::Tensor& rows, std::int64_t at,
                      const std::vector<std::int64_t>& numbers) const;
  void copy(const Lowered& l, Microbatch& m);
  // A watcher, and the plugin's observer that brought it; no observer for the program's own.
  struct Watching {
    Watcher* watcher;
    comm::RankCalls::PluginCall observer;
  };
  [[noreturn]] void throw_of_watcher(const Watching& one) const;
  // Calls each watcher. What it throws becomes an Error that names the observer.
  template <class Call>
  void show(const Call& call) {
    for (const Watching& one : watchers_) {
      const comm::InPlugin inside(one.observer, "shown a tensor");
      try {
        account_.runs() ? account_.watched([&] { call(*one.watcher); }) : call(*one.watcher);
      } catch (...) {
        throw_of_watcher(one);
      }
    }
  }
  // Shows each watcher the tensors of an op's operands, but for those of one slice alone.
  using Shows = void (Watcher::*)(const Instruction&, int slot, int microbatch, const at::Tensor&);
  void show(Shows shows, const Lowered& l, std::span<const Operand> operands, const Microbatch& m);

  void compute(Lowered& l, Microbatch& m);
  void gather(const std::vector<Operand>& from, std::vector<at::Tensor>& into, const OpRun& run,
              const Microbatch& m) const;
  void settle_gradient(OpRun& run, std::size_t input, const Microbatch& m);
  // Brings what a kernel made of a gradient to its slot.
  void keep_gradient(const Lowered& l, std::size_t input, Microbatch& m);
  void keep_results(OpRun& run, Microbatch& m);
  void take_rows(OpRun& run, const Microbatch& m);
  void find_expert_loads();

  void start(Lowered& l, Microbatch& m);
  Underway begin(Lowered& l, Microbatch& m);
  Underway start_exchange(Lowered& l, Microbatch& m);
  void count_rows(const Rows& sent, Rows& held, Communicator& ranks, Purpose purpose);
  Underway start_lasting(Lowered& l);
  void wait(const Lowered& l, Microbatch& m);
  at::Tensor finish(Begun& begun, const Microbatch& m);
  void make_hooks();

  void totals(const Lowered& l);
  void update(Lowered& l, Microbatch& m);
  void update_elements(const ElementOp& op, const UpdateCall& call);
  void apply(const Lowered& l, const UpdateNumbers& numbers);
  void outer_gradient(const Lowered& l);
  void sums(const Lowered& l, Microbatch& m, const UpdateNumbers& numbers);
  void swap(const Instruction& i);
  void apply_summed(const Lowered& l, const Microbatch& m, const UpdateNumbers& numbers);
  std::vector<at::Tensor> kept_of(const std::vector<UpdateRun::Kept>& list) const;
  std::vector<at::Tensor> sums_of(const Lowered& l, const Microbatch& m,
                                  const UpdateRun::Summed& summed, std::size_t first) const;
  void take_piece(const Lowered& l, const UpdateRun::Summed& summed, const Range& piece,
                  int parameters, const UpdateNumbers& numbers,
                  const std::vector<at::Tensor>& sums);
  void direction(const Lowered& l, Microbatch& m, const UpdateNumbers& numbers);
  void whole(const Lowered& l, Microbatch& m, bool left_out);
  void gram(const Lowered& l, Microbatch& m, bool left_out);
  void gram_step(const Lowered& l, Microbatch& m, bool left_out);
  void apply_matrix(const Lowered& l, const Microbatch& m);
  bool goes_on(const Lowered& l);
  void leave_updates();
  UpdateNumbers numbers_of_outer_step() const;
  // Carries out the outer steps that are due after a step.
  void take_outer_steps(std::int64_t step);
  std::vector<std::int64_t> by_replica(const std::vector<std::int64_t>& samples) const;
  // Makes the updates that a step has left, and awaits the gathers, but no sum of outer gradients.
  void await_parameters();
  template <class Ends>
  void await_begun(const Ends& ends);
  void outer_step(std::int64_t count);
  // Steps before this one that were not left out.
  std::int64_t updates() const { return step_ - kept_->scaler.left_out(); }
  // The numbers of the step whose gradients the update takes: this step's, or the step's before.
  UpdateNumbers numbers_of(const Lowered& l) const {
    if (l.completes_update) return kept_->left.numbers;
    if (l.said->update == Update::outer_step) return numbers_of_outer_step();
    return {outcome_.lr, updates(), scale_, outcome_.update_left_out};
  }
  at::TensorOptions options(int slot) const;
  Microbatch& microbatch(int number) { return microbatches_[static_cast<std::size_t>(number + 1)]; }
  const at::Tensor& tensor(const Microbatch& m, const Operand& operand) const {
    return operand.lasts ? storage_[operand.slot] : m.slots[operand.slot];
  }
  void put(Microbatch& m, const Operand& operand, at::Tensor made) {
    operand.lasts ? storage_.set(operand.slot, std::move(made))
                  : void(m.slots[operand.slot] = std::move(made));
  }

  const Program& program_;
  const Graph& graph_;
  const int rank_;
  const Coordinates at_;
  const at::Device device_;
  CommunicatorSource& source_;
  Ledger& ledger_;
  const RunSetup& setup_;
  const std::atomic<bool>* const stop_;  // may be null
  const bool forward_only_;
  const std::shared_ptr<Kept> kept_;
  const RankViews sizes_;
  Storage storage_;
  const Lowering lowering_;
  std::vector<std::pair<int, int>> expert_loads_;  // parameters that count, and their layers
  std::vector<Microbatch> microbatches_;           // by number + 1: first that of the step, -1
  std::vector<TimelineRun> timeline_;
  // Lowered code, by segment and the kinds of its lanes' microbatches.
  std::map<std::pair<int, std::vector<int>>, LoweredCode> code_;
  LoweredCode updates_;  // updates that a step leaves to the next step's forward
  std::vector<std::unique_ptr<Executor>> others_;
  std::unique_ptr<Executor> evaluator_;
  struct OuterProgram {
    OuterEvent event;
    std::unique_ptr<Executor> executor;
  };
  std::vector<OuterProgram> outer_;
  std::int64_t outer_count_ = 0;  // OuterEvent::count of what this executor carries out
  std::vector<Watching> watchers_;
  std::int64_t step_ = 0;
  std::vector<std::int64_t> samples_;  // the number of the sample of each row of the step
  double scale_ = 1;                   // factor of the gradients: clipping over loss scale
  StepOutcome outcome_;
  // Times of the step, which an accelerator tells at the step's end: marks of the clock around each
  // op, run and instruction.
  struct Work {
    Ledger::Entry entry;
    double flops;
    int from, to;
  };
  struct Marks {
    int from, to;
    int work = -1;  // for an account: index in work_ of the op
  };
  StepClock clock_;
  std::vector<Work> work_;
  std::vector<Marks> run_marks_, instruction_marks_;
  AccountClock account_;
  HostCopies copies_;
};

}  // namespace mw
