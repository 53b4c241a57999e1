// Access to the whole tensors of a running plan, however it distributes them: what verify, compare
// and the logits share.
#pragma once

#include <atomic>
#include <functional>
#include <map>
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

// The layout of a tensor that each rank has whole.
Layout whole_layout(const Program& program);

// A slot's tensor of a microbatch as one rank would have it, whole, with every dim in its own
// order. A collective call of all ranks that hold parts of the tensor. The result may be `tensor`
// itself.
at::Tensor whole_value(RankRun& executor, int slot, int microbatch, const at::Tensor& tensor);

// The gradient divided by the run's loss scale.
at::Tensor unscaled(const RankRun& executor, const at::Tensor& gradient);

// The name of a parameter of the rank's program; with that of its replica, where replicas differ.
std::string name_in_replica(const RankRun& executor, int parameter);
std::string name_in_replica(int replica, const std::string& parameter);

// A whole parameter, by its index in the program, or its whole gradient without a loss scale, on
// the CPU. `flat`: the flat tensor of its bucket (RankRun::whole). A collective call of all ranks
// that hold parts of the parameter.
at::Tensor whole_parameter(RankRun& executor, int parameter, const at::Tensor& flat, bool gradient);

// Calls `visit` for each parameter that the rank's program has, by its index there, with the whole
// parameter, or with its whole gradient without a loss scale. A collective call of all ranks.
void for_each_parameter(RankRun& executor, bool gradients,
                        const std::function<void(int parameter, const at::Tensor& whole)>& visit);

// The names of the ops that read an op's outputs (consumers), and of the ops whose outputs it reads
// (producers).
std::vector<std::string> consumers(const Graph& graph, const Op& op);
std::vector<std::string> producers(const Graph& graph, const Op& op);
// The op that uses a parameter first in backward; -1 if none does.
int last_user(const Graph& graph, int parameter);

// The reduction hooks of a plan that lose bits (ReductionHook::exact).
struct LossyHooks {
  std::vector<std::string> names;  // names of the hooks, each once
  // Names of the hooks that gather parameters. With one, every activation differs from one rank's.
  std::vector<std::string> gathering;
  std::set<std::string> parameters;  // names of the parameters whose gradients they reduce
};
LossyHooks lossy_hooks(const Plan& plan);

// A watcher that is also called at the end of each step.
class StepWatcher : public Watcher {
 public:
  virtual void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) = 0;
  // For a rank that no other waits for: its step throws Stopped as soon as `stop` is set.
  void end_at(const std::atomic<bool>* stop) { stop_ = stop; }
  void ran(int /*microbatch*/) override {
    if (stop_ != nullptr && stop_->load()) throw Stopped("interrupted");
  }

 private:
  const std::atomic<bool>* stop_ = nullptr;
};

// Thrown by all processes together after one of them was asked to stop. Any other Stopped is thrown
// by one process alone, and the others do not know of it.
class StoppedAll : public Stopped {
 public:
  using Stopped::Stopped;
};
// Throws StoppedAll if this process, or any other of the experiment's, was stopped.
void throw_if_any_stopped(const RunSetup& experiment, bool stopped);

// Runs `work` in the first process only, however long it takes; the others wait, and hear at
// intervals that it goes on. `work` gets a flag that is set when `stop` is set or another process
// is lost, and must then throw Stopped. Throws StoppedAll in all processes if `work` throws Stopped
// or another process was asked to stop. Any other exception of `work`, and the loss of a process
// (Error, "process.lost"), ends the other processes too.
void by_the_first(const RunSetup& experiment, const std::atomic<bool>* stop,
                  const std::function<void(const std::atomic<bool>* stop)>& work);

// Runs the first `steps` steps of a plan of the experiment's model. `begin` makes the watcher of
// each rank of this process, in the rank's thread. Throws Error (run) if a rank fails. If `stop`
// was set before the last step, throws after all ranks have ended: StoppedAll, or Stopped for a
// plan of one rank where there are several processes.
void run_steps(const RunSetup& experiment, const Plan& plan, std::int64_t steps,
               const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin);
void run_steps(RankRuntime& runtime, const RunSetup& experiment, const Plan& plan,
               std::int64_t steps, const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin);

// The logits of a batch, for comparing a model with another program that computes it.
struct Logits {
  at::Tensor tokens;                         // int64, (sequences, sequence)
  at::Tensor labels;                         // the token that follows each of `tokens`, same shape
  std::map<std::string, at::Tensor> inputs;  // that the model declares, (sequences, …)
  // (sequences, sequence, vocab), or the dims that the first loss's logits have; fp64 in plans in
  // fp64, else fp32.
  at::Tensor logits;
  double loss = 0;
};

// Runs the forward part of the plan on the batch of step 0, with the initial weights. The process
// with rank 0 gets the logits, the others empty ones. Throws Error (run) if a rank fails.
Logits logits_of(const RunSetup& experiment);

}  // namespace mw
