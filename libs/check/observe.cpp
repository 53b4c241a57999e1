// Gathers values that are cut over ranks as whole tensors, measures distances of tensors, finds
// producers and consumers of values, and runs steps that are watched.
#include "check/observe.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

constexpr const char* alone_word = "what the first process does for all";

// While an object lives, the first process sends the others, which wait for it, a sign of life at
// intervals, and checks that they are still there. It must send nothing else meanwhile.
class StillAtIt {
 public:
  StillAtIt(Processes& processes, const std::atomic<bool>* stop)
      : every_(std::min(processes.timeout() / 4, Processes::Milliseconds(5000))),
        wish_(stop),
        thread_(start_thread([this, &processes] { tell(processes); })) {}
  ~StillAtIt() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const std::atomic<bool>* stop() const { return &stop_; }
  // Throws the error by which the loss of another process was noticed.
  void check() {
    const std::lock_guard lock(mutex_);
    if (lost_ != nullptr) std::rethrow_exception(lost_);
  }

 private:
  void tell(Processes& processes) {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(mutex_);
    auto next = Clock::now() + every_;
    const auto tick = std::min(every_, Processes::Milliseconds(100));
    while (!changed_.wait_for(lock, tick, [this] { return over_; })) {
      if (wish_ != nullptr && *wish_) stop_ = true;
      const bool due = Clock::now() >= next;
      if (due) next += every_;
      try {
        for (int p = 1; p < processes.count(); ++p) {
          processes.check_there(p);
          if (due) processes.send(p, {Processes::Word::Sort::word, alone_word, pack(false)});
        }
      } catch (const std::exception&) {
        lost_ = std::current_exception();
        stop_ = true;
        return;
      }
    }
  }

  const Processes::Milliseconds every_;
  const std::atomic<bool>* const wish_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::exception_ptr lost_;
  std::jthread thread_;
};

}  // namespace

double distance(const at::Tensor& x, const at::Tensor& y) {
  const double norm =
      at::linalg_vector_norm(x.to(at::kDouble) - y.to(at::kDouble), 2).item<double>();
  return std::isfinite(norm) ? norm : std::numeric_limits<double>::infinity();
}

double relative(const at::Tensor& x, const at::Tensor& reference, double floor) {
  const double size = at::linalg_vector_norm(reference, 2).item<double>();
  const double difference = at::linalg_vector_norm(x - reference, 2).item<double>();
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return difference / std::max({size, floor, 1e-300});
}

double relative(double x, double reference, double floor) {
  const double error = std::abs(x - reference) / std::max({std::abs(reference), floor, 1e-300});
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

Layout whole_layout(const Program& program) {
  return Layout(program.mesh.atoms().size());
}

at::Tensor whole_value(RankRun& executor, int slot, int microbatch, const at::Tensor& tensor) {
  const Program& program = executor.program();
  const Slot& s = program.slots[slot];
  const at::Tensor whole = executor.redistribute(tensor, s.dims, s.layout, whole_layout(program),
                                                 program.batch_of(microbatch));
  return executor.in_own_order(whole.cpu(), s.dims, microbatch);
}

std::string name_in_replica(int replica, const std::string& parameter) {
  return replica == 0 ? parameter : fmt::format("{} of replica {}", parameter, replica);
}

std::string name_in_replica(const RankRun& executor, int parameter) {
  const Program& program = executor.program();
  return name_in_replica(program.replica_of(executor.coordinates()),
                         program.name_of_parameter(parameter));
}

at::Tensor unscaled(const RankRun& executor, const at::Tensor& gradient) {
  const double scale = executor.loss_scale();
  if (scale == 1) return gradient;
  return gradient.to(at::promote_types(at::kFloat, gradient.scalar_type())).div(scale);
}

at::Tensor whole_parameter(RankRun& executor, int parameter, const at::Tensor& flat,
                           bool gradient) {
  const Program& program = executor.program();
  const ProgramParameter& stored = program.parameters[parameter];
  const at::Tensor whole = executor.redistribute(executor.slice(parameter, flat),
                                                 program.graph->value(stored.value).dims,
                                                 stored.stored, whole_layout(program));
  return (gradient ? unscaled(executor, whole) : whole).cpu();
}

void for_each_parameter(RankRun& executor, bool gradients,
                        const std::function<void(int parameter, const at::Tensor& whole)>& visit) {
  const Program& program = executor.program();
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (gradients && program.buckets[b].frozen) continue;
    const at::Tensor flat = executor.whole(static_cast<int>(b), gradients);
    for (int p : program.buckets[b].parameters)
      visit(p, whole_parameter(executor, p, flat, gradients));
  }
}

std::vector<std::string> consumers(const Graph& graph, const Op& producer) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) {
    for (const Use& use : op.inputs) {
      const auto& made = producer.outputs;
      if (std::find(made.begin(), made.end(), use.value) != made.end()) names.push_back(op.name);
    }
  }
  return names;
}

std::vector<std::string> producers(const Graph& graph, const Op& consumer) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) {
    const bool read = std::any_of(op.outputs.begin(), op.outputs.end(), [&](int value) {
      return std::any_of(consumer.inputs.begin(), consumer.inputs.end(),
                         [&](const Use& use) { return use.value == value; });
    });
    if (read) names.push_back(op.name);
  }
  return names;
}

int last_user(const Graph& graph, int parameter) {
  const auto& ops = graph.ops();
  for (std::size_t o = ops.size(); o-- > 0;) {
    for (const Use& use : ops[o].inputs)
      if (use.value == parameter) return static_cast<int>(o);
  }
  return -1;
}

LossyHooks lossy_hooks(const Plan& plan) {
  LossyHooks lossy;
  std::set<std::string> names, gathering;
  for (const Program& program : plan.programs) {
    for (const Bucket& bucket : program.buckets) {
      if (bucket.gather_hook) {
        names.insert(bucket.gather_hook->name());
        gathering.insert(bucket.gather_hook->name());
      }
      if (!bucket.hook) continue;
      const BucketShape shape = shape_of(program, bucket, program.first());
      if (bucket.hook->exact(shape)) continue;
      names.insert(bucket.hook->name());
      lossy.parameters.insert(shape.parameters.begin(), shape.parameters.end());
    }
  }
  lossy.names.assign(names.begin(), names.end());
  lossy.gathering.assign(gathering.begin(), gathering.end());
  return lossy;
}

void run_steps(const RunSetup& experiment, const Plan& plan, std::int64_t steps,
               const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin) {
  RankRuntime runtime = runtime_of(experiment, plan);
  run_steps(runtime, experiment, plan, steps, stop, begin);
}

void run_steps(RankRuntime& runtime, const RunSetup& experiment, const Plan& plan,
               std::int64_t steps, const std::atomic<bool>* stop,
               const std::function<std::unique_ptr<StepWatcher>(RankRun&)>& begin) {
  std::atomic<bool> interrupted = false;
  const bool by_itself = plan.ranks() == 1;
  RunSetup alike = experiment;  // all steps with this one plan
  alike.step_plans = nullptr;
  if (alike.row_groups.empty())
    alike.row_groups = experiment.plan->programs.front().groups_of_rows();
  with_ranks(runtime, alike, plan, stop, [&](RankRun& executor, Ledger&) {
    const auto watcher = begin(executor);
    if (by_itself) watcher->end_at(stop);
    for (std::int64_t step = 0; step < steps; ++step) {
      executor.watch(watcher.get());
      StepOutcome outcome;
      try {
        outcome = executor.step(step, experiment.schedule(step));
      } catch (const Stopped&) {  // thrown because of the watcher's end_at()
        if (!by_itself) throw;
        interrupted = true;
        return;
      }
      executor.unwatch(watcher.get());
      watcher->stepped(executor, step, outcome);
      if (outcome.stop && step + 1 < steps) {  // the same on all ranks
        interrupted = true;
        return;
      }
    }
  });
  if (!interrupted) return;
  if (plan.ranks() > 1 || experiment.processes == nullptr) throw StoppedAll("interrupted");
  throw Stopped("interrupted");
}

void by_the_first(const RunSetup& experiment, const std::atomic<bool>* stop,
                  const std::function<void(const std::atomic<bool>* stop)>& work) {
  Processes* const processes = experiment.processes;
  bool stopped = false;
  if (processes != nullptr && !processes->first()) {
    while (!unpack<bool>(processes->broadcast(alone_word, ""))) {
    }
    stopped = stop != nullptr && *stop;
  } else {
    const auto still =
        processes != nullptr ? std::make_unique<StillAtIt>(*processes, stop) : nullptr;
    try {
      work(still != nullptr ? still->stop() : stop);
    } catch (const Stopped&) {
      stopped = true;
    }
    if (still != nullptr) still->check();
  }
  if (processes != nullptr && processes->first()) processes->broadcast(alone_word, pack(true));
  throw_if_any_stopped(experiment, stopped);
}

void throw_if_any_stopped(const RunSetup& experiment, bool stopped) {
  if (experiment.processes != nullptr) {
    for (const std::string& each :
         experiment.processes->all_gather("the wish to stop", pack(stopped)))
      stopped = stopped || unpack<bool>(each);
  }
  if (stopped) throw StoppedAll("interrupted");
}

}  // namespace mw
