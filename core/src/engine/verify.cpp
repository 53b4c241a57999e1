#include "engine/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "engine/observe.h"
#include "engine/ranks.h"
#include "meshwright/reduction_hook.h"

namespace mw {
namespace {

// What one rank computed, whole tensors.
struct Reference {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> gradients, parameters;
  std::map<std::string, at::Tensor> activations;  // only in the second pass
};

// "forward layers.0.attention.q 0 1": one tensor of a step, however it is distributed. A gradient is
// named by the output that it belongs to, for several may share a slot.
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
        i.piece == Piece::forward ? tensor.clone() : unscaled(executor_, tensor).clone();
  }
  void gradients(Executor& executor) override {
    if (!reference_.gradients.empty()) return;
    for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
      const std::string& name = program_.graph->value(program_.parameters[p].value).name;
      reference_.gradients[name] =
          unscaled(executor, executor.storage().gradient(static_cast<int>(p))).clone();
    }
  }
  void stepped(Executor& executor, std::int64_t, const StepOutcome& outcome) override {
    reference_.losses.push_back(outcome.loss);
    reference_.norms.push_back(outcome.grad_norm);
    for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
      reference_.parameters[program_.graph->value(program_.parameters[p].value).name] =
          executor.storage().parameter(static_cast<int>(p)).clone();
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
        activations_(activations) {
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
    for_each_parameter(executor, true, [&](int p, const at::Tensor& whole) {
      const double error = compare(p, whole, reference_.gradients, 1e-6 * floor_);
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].gradient;
      known = std::max(known, error);
    });
  }

  void stepped(Executor&, std::int64_t step, const StepOutcome& outcome) override {
    if (activations_) return;
    if (step + 1 == outcome_.steps) parameters(outcome.lr);
    std::lock_guard lock(mutex_);
    outcome_.loss = std::max(outcome_.loss, relative(outcome.loss, reference_.losses[step]));
    outcome_.grad_norm =
        std::max(outcome_.grad_norm, relative(outcome.grad_norm, reference_.norms[step]));
  }

 private:
  // `lr`: of the steps made. Adam moves an element by about that, so a parameter that began at zero
  // is measured against such a move.
  void parameters(double lr) {
    for_each_parameter(executor_, false, [&](int p, const at::Tensor& whole) {
      if (negligible(p)) return;
      const auto count = static_cast<double>(program_.graph->count(program_.parameters[p].value));
      const double error = compare(p, whole, reference_.parameters, lr * std::sqrt(count));
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].parameter;
      known = std::max(known, error);
    });
  }

  // A gradient that is zero but for rounding (a key's bias) says nothing, and Adam makes of it what
  // its eps allows.
  bool negligible(std::size_t p) const {
    const std::string& name = program_.graph->value(program_.parameters[p].value).name;
    return at::linalg_vector_norm(reference_.gradients.at(name), 2).item<double>() <=
           1e-12 * floor_;
  }

  double compare(std::size_t p, const at::Tensor& whole,
                 const std::map<std::string, at::Tensor>& all, double floor) {
    const Value& value = program_.graph->value(program_.parameters[p].value);
    return relative(whole, all.at(value.name), floor);
  }

  const Reference& reference_;
  Executor& executor_;
  const Program& program_;
  VerifyOutcome& outcome_;
  std::mutex& mutex_;
  const double floor_;
  const bool activations_;
  std::vector<std::ptrdiff_t> place_;  // of the program's parameters among the graph's
  bool parted_ = false, done_ = false;
};

Reference run_reference(const Experiment& experiment, const Plan& one, std::int64_t steps,
                        const std::atomic<bool>* stop, bool activations) {
  Reference reference;
  run_steps(experiment, one, steps, stop, [&](Executor& executor) {
    return std::make_unique<Keeper>(reference, executor, activations);
  });
  return reference;
}

void compare(const Experiment& experiment, const Plan& plan, const Reference& reference,
             std::int64_t steps, const std::atomic<bool>* stop, bool activations,
             VerifyOutcome& outcome) {
  std::mutex mutex;
  const double floor = reference.norms.empty() ? 0 : reference.norms.front();
  run_steps(experiment, plan, steps, stop, [&](Executor& executor) {
    return std::make_unique<Comparer>(reference, executor, outcome, mutex, floor, activations);
  });
}

// The parameters, by name, that a hook reduces which loses bits.
std::set<std::string> lossy_parameters(const Plan& plan, VerifyOutcome& outcome) {
  std::set<std::string> names, hooks;
  for (const Program& program : plan.programs) {
    for (const Bucket& bucket : program.buckets) {
      if (!bucket.hook) continue;
      const BucketShape shape = shape_of(program, bucket, program.first());
      if (bucket.hook->exact(shape)) continue;
      hooks.insert(bucket.hook->name());
      names.insert(shape.parameters.begin(), shape.parameters.end());
    }
  }
  outcome.lossy.assign(hooks.begin(), hooks.end());
  return names;
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

std::shared_ptr<const Plan> in_double(const Plan& plan) {
  PlanRequest request = plan.request;
  request.precision = Precision::fp64;
  request.schedule = plan.schedule;  // times and sizes differ in float64; what is run must not
  Problems problems;
  auto same = make_plan(request, problems);
  problems.throw_if_any();
  return same;
}

VerifyOutcome verify(const Experiment& experiment, std::int64_t steps, double tolerance,
                     const std::atomic<bool>* stop) try {
  check_thread_ranks(*experiment.plan);  // before the reference is run in vain
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
  const std::set<std::string> lossy = lossy_parameters(*plan, outcome);
  outcome.equal = lossy.empty() && std::max({outcome.loss, outcome.grad_norm, outcome.gradients,
                                             outcome.parameters}) <= tolerance;
  if (!outcome.equal) {
    const auto alike = one_rank_plan(*plan, true);
    const Reference detailed = run_reference(experiment, *alike, 1, stop, true);
    compare(experiment, *plan, detailed, 1, stop, true, outcome);
    if (!outcome.diverged) blame_parameter(*plan->graph, lossy, outcome);
  }
  return outcome;
} catch (const Interrupted&) {
  VerifyOutcome outcome;
  outcome.interrupted = true;
  return outcome;
}

std::string describe(const Divergence& d) {
  if (!d.parameter.empty()) {
    return fmt::format(
        "the gradient of {} in {}, {:.1e}; every activation and its gradient agree, so "
        "look at how it is accumulated and reduced",
        d.parameter, d.op, d.error);
  }
  const std::string where =
      fmt::format("{:.1e}, microbatch {}, rank {}", d.error, d.microbatch, d.rank);
  const std::string from = d.from.empty() ? "" : fmt::format(" (from {})", fmt::join(d.from, ", "));
  return fmt::format("{} {}{}, {}", d.backward ? "the gradient that reaches" : "the output of",
                     d.op, from, where);
}

std::string describe(const VerifyOutcome& o, const std::string& mix) {
  if (o.interrupted) return mix + ": interrupted before there was a verdict\n";
  std::string text = fmt::format(
      "{}: {} one rank in float64 (bound {:.0e})\n"
      "  largest relative errors: loss {:.1e}, gradient norm {:.1e}, gradients {:.1e}, parameters "
      "after {} steps {:.1e}\n",
      mix, o.equal ? "equals" : "DIFFERS from", o.tolerance, o.loss, o.grad_norm, o.gradients,
      o.steps, o.parameters);
  text += fmt::format("  worst parameter: {}\n", o.worst);
  if (o.diverged) text += "  first to part: " + describe(o.first) + "\n";
  if (!o.lossy.empty()) text += "  " + note_of(o) + "\n";
  return text;
}

std::string note_of(const VerifyOutcome& o) {
  if (o.lossy.empty()) return "";
  return fmt::format(
      "the hook {} sends less than the gradients, by choice, so the mix cannot equal one rank; {}",
      fmt::join(o.lossy, " and "),
      o.diverged ? "but what parted first is not its doing"
                 : "in the first step, all that it does not touch agrees");
}

}  // namespace mw
