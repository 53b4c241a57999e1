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
#include "meshwright/data.h"
#include "meshwright/engine/instruction_time.h"
#include "meshwright/engine/loss_scale.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/world.h"
#include "run/host_copy.h"
#include "run/redistribute.h"
#include "run/storage.h"

namespace mw {

struct RunTime {
  int segment = -1, microbatch = -1;
  double start = 0, end = 0;  // seconds since the step began
};

struct StepOutcome {
  double loss = 0;
  double grad_norm = 0;  // of all parameters, each element once, before clipping
  double lr = 0;
  double loss_scale = 1;      // LossScaler
  bool left_out = false;      // its update, as gradients overflowed
  bool not_finite = false;    // the loss or the norm; the update was left out (leaves_out)
  bool stop = false;          // some rank was asked to stop
  double began = 0;           // seconds of the clock that all ranks of the machine share
  std::vector<RunTime> runs;  // of the timeline
  // Of a step that is traced, of each instruction that ran; else empty.
  std::vector<InstructionTime> instructions;
  std::vector<MemoryMoment> moments;
};

// What the executor shows while it runs (verify compares it). Called in the rank's thread.
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
  virtual void gradients(class Executor& executor) = 0;
  // Around a step, with the executor whose program it runs, and after each run of a segment.
  virtual void begin(class Executor& /*executor*/, std::int64_t /*step*/) {}
  virtual void ran(int /*microbatch*/) {}
  virtual void ended() {}
};

// What all ranks of a run share.
struct StepInput {
  const TokenSource* data = nullptr;
  // The first sample of a step: those of a step follow those of the one before.
  std::function<std::int64_t(std::int64_t step)> first_sample;
  // Which program a step has: 0 for the executor's own, n for that which was given to
  // also() as the n-th.
  std::function<int(std::int64_t step)> which;
  const Optimizer* optimizer = nullptr;
  const std::atomic<bool>* stop_request = nullptr;  // may be null
  std::shared_ptr<const LossScale> loss_scale;      // null: none
  std::vector<std::int64_t> traced = {};            // steps of which instructions are timed
  bool forward_only = false;  // nothing is updated, and the steps are no steps of the run
};

class Executor {
 public:
  // Allocates the rank's storage, or, of another program of the same stage, shares that of `first`,
  // and its communicators. The references must outlive it.
  Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
           Ledger& ledger, const StepInput& input, const Executor* first = nullptr);
  ~Executor();
  // Another program of the same stage, for steps with other microbatches. It keeps the same
  // parameters in the same tensors and must outlive the executor.
  void also(const Program& program);

  // A program without a way back (plan/forward_only.h), on other data; shares storage as above.
  void evaluates(const Program& program, const StepInput& input);

  // What evaluate() runs; null without evaluates().
  Executor* evaluator() { return evaluator_.get(); }

  StepOutcome step(std::int64_t index, double lr);
  // The loss of a batch of that data. The ledger books what it takes.
  double evaluate(std::int64_t batch);

  const Program& program() const { return program_; }
  const Coordinates& coordinates() const { return at_; }
  int rank() const { return rank_; }
  at::Device device() const { return device_; }
  // What the gradients of the step are times (LossScaler).
  double loss_scale() const { return scaler_->scale(); }
  // What beside the storage lasts from step to step, for checkpoints. Null: the bucket has no hook.
  LossScaler& scaler() { return *scaler_; }
  BucketReduction* hooked(int bucket) { return hooked_.at(bucket).get(); }
  // Whether the step's update is left out; known when gradients() is called.
  bool left_out() const { return outcome_.left_out; }
  Storage& storage() { return storage_; }
  at::ScalarType real() const { return real_; }
  Ledger& ledger() { return ledger_; }
  void watch(Watcher* watcher);
  // From now on a step whose loss or norm is not finite, though no loss scale explains it, is left
  // out, on all ranks alike.
  void leaves_out_not_finite();
  Communicator& group(const RankSet& set);
  // A bucket's whole gradients or parameters, gathered from their parts. All ranks call it alike.
  at::Tensor whole(int bucket, bool gradients);
  // What expert_loads have counted in this step, by layer and element;
  // nothing but on the first rank of a stage.
  std::map<std::pair<int, std::int64_t>, std::int64_t> expert_loads();
  // A parameter's slice of what whole() returned.
  at::Tensor slice(int parameter, const at::Tensor& whole) const;
  // Brings a tensor that lies as `from` to `to` (reporting and verification; not in any ledger's
  // phase of training). `batch`: the size of that dim in what the tensor is of (Program::batch_of).
  at::Tensor redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                          const Layout& to, std::int64_t batch = 0);

 private:
  // What stays from step to step beside the storage, whichever program a step has.
  struct Kept {
    std::map<RankSet, std::unique_ptr<Communicator>> groups;
    std::vector<std::unique_ptr<BucketReduction>> hooked;  // of each bucket; null without a hook
  };
  StepOutcome own_step(std::int64_t index, double lr);
  void read_times();
  // Rows of sparse tensors in one layout: how many of each group, and,
  // where they came by an exchange, from whom.
  struct Rows {
    std::vector<std::int64_t> of_group;
    std::vector<std::vector<std::int64_t>> from;  // of each rank of the exchange, of each group
  };
  struct Microbatch {
    const RankView* sizes = nullptr;
    std::vector<at::Tensor> slots;
    // Of sparse tensors, by the layer that makes them and how they lie.
    std::map<int, Rows> rows;  // by rows_of_slot_
  };

  struct Codes;  // a function for each code (executor.cpp)
  void run(const Instruction& i, int microbatch);
  const std::vector<Instruction>& steps_of(const Instruction& ring);
  // Waits for copies of host memory that it reads, overwrites or frees.
  void touch(const Instruction& i, const Microbatch& m);
  void run_traced(const SegmentRun& part);
  void run_traced(const Instruction& i, InstructionTime time);
  void compute(const Instruction& i, Microbatch& m, int microbatch);
  void call(const Instruction& i, const Microbatch& m, struct OpCall& call);
  void settle_gradient(const Instruction& i, std::size_t input, Microbatch& m, struct OpCall& call);
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
  // Steps before this one that were not left out.
  std::int64_t updates() const { return step_ - scaler_->left_out(); }
  void direction(const Instruction& i, Microbatch& m);
  void whole(const Instruction& i, Microbatch& m);
  void apply_matrix(const Instruction& i, const Microbatch& m);
  void even_out(const Instruction& i);
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
  // For each slot: which rows it has (equal where the same op made them and they lie
  // alike); -1: not sparse.
  std::vector<int> rows_of_slot_;
  std::vector<std::pair<int, int>> expert_loads_;  // parameters that count, and their layers
  std::vector<bool> last_run_;  // for each run of the timeline: of its microbatch
  std::map<RankSet, std::unique_ptr<Communicator>>& groups_;
  std::map<int, Microbatch> microbatches_;
  std::map<std::pair<const Instruction*, const RankView*>, MoveSteps> steps_;  // of moves that ran
  std::map<const Instruction*, std::vector<Instruction>> rings_;  // of those that ran, written out
  // Moves begun and not awaited, by pending and microbatch; -1: between slots that last.
  std::map<std::pair<int, int>, Underway> underway_;
  std::vector<std::unique_ptr<BucketReduction>>& hooked_;
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
  HostCopies copies_;
};

}  // namespace mw
