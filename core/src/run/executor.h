// Runs a program's step on one rank, instruction by instruction, in the rank's own thread.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/step_clock.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"
#include "run/account_clock.h"
#include "run/host_copy.h"
#include "run/redistribute.h"
#include "run/storage.h"

namespace mw {

// What all ranks of a run share.
struct StepInput {
  const TokenSource* data = nullptr;
  // The first sample of a step: those of a step follow those of the one before.
  std::function<std::int64_t(std::int64_t step)> first_sample;
  // Which program a step has: 0 for the executor's own, n for that which was given to
  // add_program() as the n-th.
  std::function<int(std::int64_t step)> which;
  const Optimizer* optimizer = nullptr;
  const std::atomic<bool>* stop_request = nullptr;  // may be null
  std::shared_ptr<const LossScale> loss_scale;      // null: none
  std::vector<std::int64_t> traced = {};            // steps of which instructions are timed
  bool account = false;       // and of which it is noted where their seconds went
  bool forward_only = false;  // nothing is updated, and the steps are no steps of the run
};

class Executor : public RankRun {
 public:
  // Allocates the rank's storage, or, of another program of the same stage, shares that of `first`,
  // and its communicators. The references must outlive it.
  Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
           Ledger& ledger, const StepInput& input, const Executor* first = nullptr);
  ~Executor() override;
  // Another program of the same stage, for steps with other microbatches. It keeps the same
  // parameters in the same tensors and must outlive the executor.
  void add_program(const Program& program);
  // A program without a way back (engine/forward_only.h), on other data; shares storage as above.
  void evaluate_by(const Program& program, const StepInput& input);

  StepOutcome step(std::int64_t index, double lr) override;
  // The ledger books what it takes.
  double evaluate(std::int64_t batch) override;
  RankRun* evaluator() override { return evaluator_.get(); }

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
  double loss_scale() const override { return scaler_->scale(); }
  LossScaler& scaler() override { return *scaler_; }
  BucketReduction* hook_of(int bucket) override { return hook_of_bucket_.at(bucket).get(); }
  bool update_left_out() const override { return outcome_.update_left_out; }
  void watch(Watcher* watcher) override;
  void leave_out_not_finite() override;
  Communicator& group(const RankSet& set) override { return group(set, -1); }
  at::Tensor whole(int bucket, bool gradients) override;
  at::Tensor slice(int parameter, const at::Tensor& whole) const override;
  at::Tensor redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                          const Layout& to, std::int64_t batch) override;
  // What expert_loads have counted in this step, by layer and element;
  // nothing but on the first rank of a stage.
  std::map<std::pair<int, std::int64_t>, std::int64_t> expert_loads();

 private:
  // The numbers of a step, beside its gradients, that an update of this step needs.
  struct UpdateNumbers {
    double lr = 0;
    std::int64_t step = 0;  // steps before it that were not left out
    double scale = 1;       // of the gradients: clipping, over the loss's
    bool left_out = true;
  };
  // The updates that a step has left to the forward of the next one. Before the first step these
  // numbers say `left_out`, so that its forward sends what every step's does and updates nothing.
  struct Left {
    UpdateNumbers numbers;
    bool any = false;          // whether a step has left any
    std::map<int, bool> made;  // by bucket: whether its update has been made since
  };
  // By ranks, and the name of a stream.
  using Groups = std::map<std::pair<RankSet, std::string>, std::unique_ptr<Communicator>>;
  // What stays from step to step beside the storage, whichever program a step has.
  struct Kept {
    Groups groups;
    std::vector<std::unique_ptr<BucketReduction>> hooks;  // of each bucket; null without a hook
    std::map<int, Underway> gathers;  // by bucket: of parameters, that outlast the step
    Left left;
  };
  // `stream`: of a transfer (Move::stream).
  Communicator& group(const RankSet& set, int stream);
  StepOutcome own_step(std::int64_t index, double lr);
  void read_times();
  void read_parts(std::size_t instruction);
  // Rows of sparse tensors in one layout: how many of each group, and,
  // where they came by an exchange, from whom.
  struct Rows {
    std::vector<std::int64_t> of_group;
    std::vector<std::vector<std::int64_t>> from;  // of each rank of the exchange, of each group
  };
  struct Microbatch {
    const RankView* sizes = nullptr;
    std::vector<at::Tensor> slots;
    // The rows of sparse tensors, by the layer that makes them and how they lie.
    std::map<int, Rows> rows;  // by rows_of_slot_
  };

  struct Codes;  // a function for each code (executor.cpp)
  void run(const Instruction& i, int microbatch);
  const std::vector<Instruction>& steps_of(const Instruction& ring);
  // Waits for copies of host memory that it reads, overwrites or frees.
  void touch(const Instruction& i, const Microbatch& m);
  void run_lanes(const SegmentRun& part, bool traced);
  void run_traced(const SegmentRun& part, std::size_t index);
  void run_traced(const Instruction& i, InstructionTime time);
  void compute(const Instruction& i, Microbatch& m, int microbatch);
  void call(const Instruction& i, const Microbatch& m, struct OpCall& call);
  void settle_gradient(const Instruction& i, std::size_t input, Microbatch& m, struct OpCall& call);
  // What the instruction's slice reads or writes of a slot's tensor.
  at::Tensor part_of(const Instruction& i, int slot, const at::Tensor& tensor) const;
  // Whether the op of a slice sums over the sliced dim.
  bool sums_slices(const Instruction& i) const;
  // Brings what a kernel made of a gradient to its slot.
  void keep_gradient(const Instruction& i, std::size_t input, Microbatch& m,
                     const struct OpCall& call);
  void keep_results(const Instruction& i, Microbatch& m, int microbatch, struct OpCall& call);
  // Whether parameters' gradients are added up in more bits than they are made in.
  bool widens() const { return program_.gradient_dtype != program_.dtype; }
  Underway start_shift(const Instruction& i, Microbatch& m, int microbatch);
  Underway start_transfer(const Instruction& i, Microbatch& m, int microbatch);
  void make_hooks();
  Underway start_hook(const Instruction& i);
  // A move or a hook under way, by its pending and, unless it is of the step, its microbatch.
  std::pair<int, int> underway(const Instruction& i, int microbatch) const {
    return {i.pending, between_lasting(program_, i) ? -1 : microbatch};
  }
  void start(const Instruction& i, Microbatch& m, int microbatch);
  Underway start_lasting(const Instruction& i);  // between slots that last
  void wait(const Instruction& i, Microbatch& m, int microbatch);
  void totals(const Instruction& i);
  void update(const Instruction& i, Microbatch& m);
  void apply(const Instruction& i);
  std::vector<int> states_of(const Instruction& i) const;  // slots that an update works on
  // Steps before this one that were not left out.
  std::int64_t updates() const { return step_ - scaler_->left_out(); }
  void find_updates();
  bool goes_on(const Instruction& i);
  void leave_updates();
  // The numbers of the step whose gradients the update takes: this one's, or the one's before.
  UpdateNumbers numbers_of(const Instruction& i) const {
    if (completes_update(program_, i)) return kept_->left.numbers;
    return {outcome_.lr, updates(), scale_, outcome_.update_left_out};
  }
  void direction(const Instruction& i, Microbatch& m);
  void whole(const Instruction& i, Microbatch& m);
  void apply_matrix(const Instruction& i, const Microbatch& m);
  void apply_counts(const Instruction& i);
  // Whether this rank is a contributing rank of the world's sum of a quantity that is whole on the
  // atoms that `whole` takes, and a sum on others.
  template <class Whole>
  bool contributes(const Whole& whole) const {
    for (std::size_t a = 0; a < at_.size(); ++a) {
      if (static_cast<int>(a) == program_.stage_atom) continue;  // a stage's own, or zero
      if (whole(static_cast<int>(a)) && at_[a] != 0) return false;
    }
    return true;
  }
  Underway start_exchange(const Instruction& i, Microbatch& m);
  void number_rows();
  // Whether it makes again what forward made.
  static bool recomputes(const Instruction& i) { return i.phase == std::string_view("recompute"); }
  // Rows that there are, over those that the op's cost supposes.
  double share_of_rows(const Instruction& i, const RankView& sizes,
                       const std::vector<std::int64_t>& rows) const;
  bool sparse(int slot) const { return slot >= 0 && rows_of_slot_[slot] >= 0; }
  // The slot whose rows are those of a compute's sparse operands:
  // of its inputs, else of its outputs; -1.
  int sparse_operand(const Instruction& i) const;
  void take_rows(const Instruction& i, Microbatch& m, struct OpCall& call);
  void keep_rows(const Instruction& i, Microbatch& m, struct OpCall& call);
  bool lasts(int slot) const { return program_.slots[slot].persistent; }
  at::TensorOptions options(int slot) const;
  const MoveSteps& steps(const Instruction& i, const Microbatch& m);
  const at::Tensor& tensor(const Microbatch& m, int slot) const {
    return lasts(slot) ? storage_[slot] : m.slots[slot];
  }

  const Program& program_;
  const Graph& graph_;
  const int rank_;
  const Coordinates at_;
  const at::ScalarType real_;
  const at::Device device_;
  CommunicatorSource& source_;
  Ledger& ledger_;
  const StepInput input_;
  const std::shared_ptr<Kept> kept_;
  const RankViews sizes_;
  Storage storage_;
  // Which rows each slot has (equal where the same op made them and they lie alike); -1: not
  // sparse.
  std::vector<int> rows_of_slot_;
  std::vector<std::pair<int, int>> expert_loads_;  // parameters that count, and their layers
  // Whether each lane of each run of the timeline is the last one of its microbatch.
  std::vector<std::vector<bool>> last_run_;
  Groups& groups_;
  std::map<int, Microbatch> microbatches_;
  std::map<std::pair<const Instruction*, const RankView*>, MoveSteps> steps_;  // of moves that ran
  std::map<int, std::vector<const Instruction*>> updates_;  // left to the next forward, by bucket
  std::map<const Instruction*, std::vector<Instruction>> rings_;  // of those that ran, written out
  // Moves begun and not awaited, by pending and microbatch; -1: between slots that last.
  std::map<std::pair<int, int>, Underway> underway_;
  std::vector<std::unique_ptr<BucketReduction>>& hook_of_bucket_;
  std::vector<std::unique_ptr<Executor>> others_;
  std::unique_ptr<Executor> evaluator_;
  Watcher* watcher_ = nullptr;
  bool leaves_out_ = false;
  std::int64_t step_ = 0;
  std::shared_ptr<LossScaler> scaler_;
  double scale_ = 1;  // of the gradients: clipping, over the loss's
  StepOutcome outcome_;
  // Times of the step, which an accelerator tells at its end: marks of outcome_.runs and
  // outcome_.instructions, two of each, and what its ops computed.
  struct Work {
    const Op* op;
    Piece piece;
    double flops;
    int from, to;
  };
  StepClock clock_;
  std::vector<int> run_marks_, instruction_marks_;
  std::vector<Work> work_;
  AccountClock account_;
  std::vector<int> instruction_work_;  // of an account: which of work_ each one is, or -1
  HostCopies copies_;
};

}  // namespace mw
