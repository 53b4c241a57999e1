// Runs an experiment's first steps in float64 on one rank and on the plan, and compares every
// activation, gradient and updated parameter.
#include "check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "base/interrupt.h"
#include "check/observe.h"
#include "check/verify_follow.h"
#include "check/verify_pack.h"
#include "comm/processes.h"
#include "run/ranks.h"

namespace mw {
namespace {

// What one rank computed, whole tensors; gradients of the first step.
struct Reference : RunRecord {
  std::map<std::string, at::Tensor> activations;  // only in the second pass
};

// "forward layers.0.attention.q 0 1": one tensor of a step, however it is distributed. A gradient
// is named by the output that it belongs to, for several may share a slot.
std::string key_of(const Program& program, const Instruction& i, int slot, int microbatch) {
  const bool forward = i.piece == Piece::forward;
  const auto& slots = forward ? i.outputs : i.grad_outputs;
  const auto output = std::find(slots.begin(), slots.end(), slot) - slots.begin();
  return fmt::format("{} {} {} {}", forward ? "forward" : "backward",
                     program.graph->ops()[i.op].name, output, microbatch);
}

// Keeps what the single rank computes.
class Keeper : public StepWatcher {
 public:
  Keeper(Reference& reference, const Executor& executor, bool activations)
      : reference_(reference),
        executor_(executor),
        program_(executor.program()),
        activations_(activations) {}
  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    if (!activations_) return;
    reference_.activations[key_of(program_, i, slot, microbatch)] =
        (i.piece == Piece::forward ? tensor : unscaled(executor_, tensor)).cpu().clone();
  }
  void gradients(Executor& executor) override {
    if (!reference_.gradients.empty()) return;
    reference_.gradients.emplace_back();
    for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
      const std::string& name = program_.graph->value(program_.parameters[p].value).name;
      reference_.gradients.front()[name] =
          unscaled(executor, executor.storage().gradient(static_cast<int>(p))).cpu().clone();
    }
  }
  void stepped(Executor& executor, std::int64_t, const StepOutcome& outcome) override {
    reference_.losses.push_back(outcome.loss);
    reference_.norms.push_back(outcome.grad_norm);
    reference_.parameters.emplace_back();
    for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
      reference_.parameters.back()[program_.graph->value(program_.parameters[p].value).name] =
          executor.storage().parameter(static_cast<int>(p)).cpu().clone();
    }
  }

 private:
  Reference& reference_;
  const Executor& executor_;
  const Program& program_;
  const bool activations_;
};

// Compares a rank of the plan with it.
class Comparer : public StepWatcher {
 public:
  Comparer(const Reference& reference, Executor& executor, VerifyOutcome& outcome,
           std::mutex& mutex, double gradient_floor, bool activations)
      : reference_(reference),
        executor_(executor),
        program_(executor.program()),
        outcome_(outcome),
        mutex_(mutex),
        floor_(gradient_floor),
        activations_(activations),
        end_(first_not_finite(reference)) {
    const std::vector<int> all = program_.graph->parameters();
    for (const ProgramParameter& p : program_.parameters) {
      place_.push_back(std::find(all.begin(), all.end(), p.value) - all.begin());
    }
  }

  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    if (!activations_) return;
    const Slot& s = program_.slots[slot];
    if (program_.graph->sparse.has(s.dims)) return;  // rows lie as the ranks have them
    const bool backward = i.piece != Piece::forward;
    const at::Tensor whole = whole_value(executor_, slot, microbatch, tensor);
    const at::Tensor full = backward ? unscaled(executor_, whole) : whole;
    const auto found = reference_.activations.find(key_of(program_, i, slot, microbatch));
    if (found == reference_.activations.end() || parted_) return;
    const double error =
        relative(full.to(at::kDouble), found->second.to(at::kDouble), backward ? 1e-6 * floor_ : 0);
    if (error <= outcome_.tolerance) return;
    parted_ = true;
    const auto ops = static_cast<std::int64_t>(program_.graph->ops().size());
    const std::int64_t order = 2 * ops * microbatch + (backward ? 2 * ops - 1 - i.op : i.op);
    std::lock_guard lock(mutex_);
    // Whichever rank or stage came here first, the least of their orders is the first.
    const int rank = executor_.rank();
    const Divergence& known = outcome_.first;
    if (outcome_.diverged && std::pair(known.order, known.rank) < std::pair(order, rank)) return;
    outcome_.diverged = true;
    outcome_.first = {
        program_.graph->ops()[i.op].name, backward, microbatch, rank, error, {}, "", order};
    const Op& op = program_.graph->ops()[i.op];
    outcome_.first.from =
        backward ? consumers(*program_.graph, op) : producers(*program_.graph, op);
  }

  void gradients(Executor& executor) override {
    if (done_) return;
    done_ = true;
    if (end_.step == 0 && end_.before_update) return;
    for_each_parameter(executor, true, [&](int p, const at::Tensor& whole) {
      const double error = compare(p, whole, reference_.gradients.front(), 1e-6 * floor_);
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].gradient;
      known = std::max(known, error);
    });
  }

  // Up to where one rank is not finite any more; there the mix must not be either.
  void stepped(Executor&, std::int64_t step, const StepOutcome& outcome) override {
    if (activations_ || step > end_.step) return;
    const bool last = step == end_.step && end_.before_update;
    if (!last && (step == end_.step || step + 1 == outcome_.steps ||
                  (step + 1 == end_.step && end_.before_update)))
      parameters(step, outcome.lr);
    const auto error = [&](double x, double reference, double floor) {
      return last && std::isfinite(x) == std::isfinite(reference) ? 0
                                                                  : relative(x, reference, floor);
    };
    std::lock_guard lock(mutex_);
    const double loss = error(outcome.loss, reference_.losses[step], loss_floor);
    const double norm = error(outcome.grad_norm, reference_.norms[step], norm_floor);
    outcome_.loss = std::max(outcome_.loss, loss);
    outcome_.grad_norm = std::max(outcome_.grad_norm, norm);
    if (step > 0) return;
    outcome_.first_loss = std::max(outcome_.first_loss, loss);
    outcome_.first_norm = std::max(outcome_.first_norm, norm);
  }

 private:
  // `lr`: of the steps made. Adam moves an element by about that, so a parameter that began at zero
  // is measured against such a move.
  void parameters(std::int64_t step, double lr) {
    for_each_parameter(executor_, false, [&](int p, const at::Tensor& whole) {
      if (negligible(p)) return;
      const auto count = static_cast<double>(program_.graph->count(program_.parameters[p].value));
      const double error = compare(p, whole, reference_.parameters[step], lr * std::sqrt(count));
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].parameter;
      known = std::max(known, error);
    });
  }

  // A gradient that is zero but for rounding (a key's bias) says nothing, and Adam makes of it what
  // its eps allows.
  bool negligible(std::size_t p) const {
    const std::string& name = program_.graph->value(program_.parameters[p].value).name;
    return at::linalg_vector_norm(reference_.gradients.front().at(name), 2).item<double>() <=
           1e-12 * floor_;
  }

  double compare(std::size_t p, const at::Tensor& whole,
                 const std::map<std::string, at::Tensor>& all, double floor) {
    const Value& value = program_.graph->value(program_.parameters[p].value);
    return relative_where_finite(whole, all.at(value.name), floor);
  }

  const Reference& reference_;
  Executor& executor_;
  const Program& program_;
  VerifyOutcome& outcome_;
  std::mutex& mutex_;
  const double floor_;
  const bool activations_;
  const NotFinite end_;
  std::vector<std::ptrdiff_t> place_;  // of the program's parameters among the graph's
  bool parted_ = false, done_ = false;
};

Reference run_reference(const Experiment& experiment, const Plan& one, std::int64_t steps,
                        const std::atomic<bool>* stop, bool activations) {
  Reference reference;  // of each process, by itself
  bool stopped = false;
  try {
    run_steps(experiment, one, steps, stop, [&](Executor& executor) {
      return std::make_unique<Keeper>(reference, executor, activations);
    });
  } catch (const Stopped&) {
    stopped = true;
  }
  throw_if_any_stopped(experiment, stopped);
  return reference;
}

// What each process has compared, on all of them.
void merge(Processes& processes, VerifyOutcome& outcome) {
  const auto most = [](double& known, double other) { known = std::max(known, other); };
  for (const std::string& bytes : processes.all_gather("what verify compared", pack(outcome))) {
    const auto other = unpack<VerifyOutcome>(bytes);
    for (std::size_t p = 0; p < outcome.errors.size(); ++p) {
      most(outcome.errors[p].gradient, other.errors.at(p).gradient);
      most(outcome.errors[p].parameter, other.errors.at(p).parameter);
    }
    most(outcome.loss, other.loss);
    most(outcome.grad_norm, other.grad_norm);
    most(outcome.first_loss, other.first_loss);
    most(outcome.first_norm, other.first_norm);
    if (!other.diverged) continue;
    const auto order = [](const Divergence& d) { return std::pair(d.order, d.rank); };
    if (!outcome.diverged || order(other.first) < order(outcome.first)) outcome.first = other.first;
    outcome.diverged = true;
  }
}

void compare(const Experiment& experiment, const Plan& plan, const Reference& reference,
             std::int64_t steps, const std::atomic<bool>* stop, bool activations,
             VerifyOutcome& outcome) {
  std::mutex mutex;
  const double floor = reference.norms.empty() ? 0 : std::max(reference.norms.front(), norm_floor);
  run_steps(experiment, plan, steps, stop, [&](Executor& executor) {
    return std::make_unique<Comparer>(reference, executor, outcome, mutex, floor, activations);
  });
  if (experiment.processes != nullptr) merge(*experiment.processes, outcome);
}

// If every activation and its gradient agree, the fault lies in a parameter's own gradient: the ops
// that use the first parameter that parts, in the order of backward.
void blame_parameter(const Graph& graph, const std::set<std::string>& lossy,
                     VerifyOutcome& outcome) {
  const auto& ops = graph.ops();
  for (std::size_t o = ops.size(); o-- > 0;) {
    for (const Use& use : ops[o].inputs) {
      for (const ParameterError& e : outcome.errors) {
        if (e.gradient <= outcome.tolerance || graph.value(use.value).name != e.name) continue;
        if (lossy.count(e.name) > 0) continue;
        outcome.diverged = true;
        outcome.first = {ops[o].name, true, 0, 0, e.gradient, {}, e.name, 0};
        return;
      }
    }
  }
}

}  // namespace

VerifyOutcome verify(const Experiment& experiment, std::int64_t steps, double tolerance,
                     const std::atomic<bool>* stop) try {
  check_thread_ranks(*experiment.plan,
                     experiment.processes);  // before the reference is run in vain
  if (experiment.steps > 0) steps = std::min(steps, experiment.steps);
  const auto plan = in_double(*experiment.plan);
  // The whole batch at once: a fault of the accumulation over microbatches must show.
  const auto one = one_rank_plan(*plan, false);
  VerifyOutcome outcome;
  outcome.steps = steps;
  outcome.tolerance = tolerance;
  for (int value : plan->graph->parameters()) {
    outcome.errors.push_back({plan->graph->value(value).name, 0, 0});
  }
  const Reference reference = run_reference(experiment, *one, steps, stop, false);
  compare(experiment, *plan, reference, steps, stop, false, outcome);
  for (const ParameterError& e : outcome.errors) {
    if (outcome.worst.empty() || e.gradient > outcome.gradients) outcome.worst = e.name;
    outcome.gradients = std::max(outcome.gradients, e.gradient);
    outcome.parameters = std::max(outcome.parameters, e.parameter);
  }
  const NotFinite end = first_not_finite(reference);
  const LossyHooks lossy = lossy_hooks(*plan);
  outcome.lossy = lossy.names;
  const double first = std::max({outcome.first_loss, outcome.first_norm, outcome.gradients});
  const double all = std::max({first, outcome.loss, outcome.grad_norm, outcome.parameters});
  if (lossy.names.empty() && all <= tolerance) {
    outcome.undecided = end.step < steps;
    outcome.equal = !outcome.undecided;
    outcome.not_finite = describe(reference, end);
    outcome.steps = end.step + (end.step < steps && !end.before_update ? 1 : 0);
    return outcome;
  }
  if (lossy.names.empty() && first <= tolerance) {
    follow(experiment, *plan, *one, steps, stop, outcome);
    if (outcome.equal || outcome.undecided) return outcome;
  }
  const auto alike = one_rank_plan(*plan, true);
  const Reference detailed = run_reference(experiment, *alike, 1, stop, true);
  compare(experiment, *plan, detailed, 1, stop, true, outcome);
  if (!outcome.diverged) blame_parameter(*plan->graph, lossy.parameters, outcome);
  return outcome;
} catch (const Stopped& stopped) {
  if (experiment.processes != nullptr && dynamic_cast<const StoppedAll*>(&stopped) == nullptr)
    throw;  // the others have not heard of it
  VerifyOutcome outcome;
  outcome.interrupted = true;
  return outcome;
}

}  // namespace mw
