// Whole tensors of a run, whatever its mix, while it goes on: what verify and compare share, and
// the logits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"

namespace mw {

// The 2-norm of x - y, in fp64; infinity where it is not finite.
double distance(const at::Tensor& x, const at::Tensor& y);
// |x - reference| / max(|reference|, floor), 2-norms; infinity where it is not finite.
double relative(const at::Tensor& x, const at::Tensor& reference, double floor);
double relative(double x, double reference, double floor);

// The layout of what each rank has whole.
Layout whole_layout(const Program& program);

// A slot's tensor of a microbatch as one rank would have it, every dim in its own order. All ranks
// that hold parts of it call alike. It may be `tensor` itself.
at::Tensor whole_value(RankRun& executor, int slot, int microbatch, const at::Tensor& tensor);

// A gradient as it would be without a loss scale.
at::Tensor unscaled(const RankRun& executor, const at::Tensor& gradient);

// A parameter, by its index in the program: whole, or its whole gradient without a loss scale, on
// the CPU. `flat`: of its bucket (Executor::whole). All ranks that hold parts of it call alike.
at::Tensor whole_parameter(RankRun& executor, int parameter, const at::Tensor& flat, bool gradient);

// Each parameter's whole gradient, without a loss scale, or numbers, by its index in the program:
// of what the rank holds, gathered where that is a part. All ranks call alike.
void for_each_parameter(RankRun& executor, bool gradients,
                        const std::function<void(int parameter, const at::Tensor& whole)>& visit);

// The names of the ops that read an op's outputs, and of those whose outputs it reads.
std::vector<std::string> consumers(const Graph& graph, const Op& op);
std::vector<std::string> producers(const Graph& graph, const Op& op);
// The op that uses a parameter first in backward; -1 if none does.
int last_user(const Graph& graph, int parameter);

// What a plan's hooks reduce that lose bits (ReductionHook::exact).
struct LossyHooks {
  std::vector<std::string> names;    // of hooks, each once
  std::set<std::string> parameters;  // whose gradients they reduce
};
LossyHooks lossy_hooks(const Plan& plan);

// A watcher that is told of the end of each step too.
class StepWatcher : public Watcher {
 public:
  virtual void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) = 0;
  // A step of a rank that no other waits for ends by Stopped as soon as `stop` is set.
  void end_at(const std::atomic<bool>* stop) { stop_ = stop; }
  void ran(int /*microbatch*/) override {
    if (stop_ != nullptr && stop_->load()) throw Stopped("interrupted");
  }

 private:
  const std::atomic<bool>* stop_ = nullptr;
};

// Thrown where all processes give up together because of the wish to stop. A Stopped of another
// kind is one process' own, and the others have not heard of it.
class StoppedAll : public Stopped {
 public:
  using Stopped::Stopped;
};
// Throws StoppedAll if this process, or any other of the experiment's, was stopped.
void throw_if_any_stopped(const RunSetup& experiment, bool stopped);

// Does by the first process what that does for all, however long it takes: the others hear
// meanwhile that it is at it, and wait. `work` gets a flag that is set when `stop` is, or when
// another process is gone, and then ends by Stopped. Throws StoppedAll, in all, if `work` throws
// Stopped there or another process was asked to stop; what else it throws, and the loss of a
// process (Error, "process.lost"), ends the other processes too.
void by_the_first(const RunSetup& experiment, const std::atomic<bool>* stop,
                  const std::function<void(const std::atomic<bool>* stop)>& work);

// Runs the first `steps` steps of a plan of the experiment's model. `begin` makes each rank's
// watcher, in its thread, of the ranks that are here. Throws StoppedAll, after all ranks have
// ended, if `stop` was set before the last step (of a plan of one rank, which each process runs by
// itself, Stopped), and Error (run) if a rank fails.
void run_steps(const RunSetup& experiment, const Plan& plan, std::int64_t steps,
               const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin);
void run_steps(RankRuntime& runtime, const RunSetup& experiment, const Plan& plan,
               std::int64_t steps, const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin);

// The logits of a batch, to hold a model beside another program that computes it.
struct Logits {
  at::Tensor tokens;  // int64, (sequences, sequence)
  at::Tensor labels;  // the tokens that each of them is followed by
  at::Tensor logits;  // (sequences, sequence, vocab), fp64 in plans of that, else fp32
  double loss = 0;
};

// Runs the forward part of the plan on the batch of step 0, with the weights of before it. On the
// process that has rank 0; empty on others. Throws Error (run) if a rank fails.
Logits logits_of(const RunSetup& experiment);

}  // namespace mw
