// Runs an experiment's first steps in float64 on one rank and on the plan, and compares every
// activation, gradient and updated parameter.
#include "check/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "check/observe.h"
#include "check/reference.h"
#include "check/verify_follow.h"
#include "check/verify_pack.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/ranks.h"

namespace mw {
namespace {

// Watches a rank of the plan, and compares its tensors with the reference.
class Comparer : public StepWatcher {
 public:
  Comparer(const Reference& reference, RankRuntime& runtime, const Plan& plan, RankRun& executor,
           VerifyOutcome& outcome, std::mutex& mutex, double gradient_floor, bool activations)
      : reference_(reference),
        taker_(reference, runtime, executor.rank()),
        plan_(plan),
        executor_(executor),
        program_(executor.program()),
        outcome_(outcome),
        mutex_(mutex),
        floor_(gradient_floor),
        activations_(activations),
        end_(reference.end()) {
    const std::vector<int> all = program_.graph->parameters();
    for (const ProgramParameter& p : program_.parameters) {
      place_.push_back(std::find(all.begin(), all.end(), p.value) - all.begin());
    }
  }

  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    if (!activations_) return;
    const Slot& s = program_.slots[slot];
    if (program_.graph->sparse.has(s.dims)) return;  // sparse rows depend on the ranks
    const bool backward = i.piece != Piece::forward;
    const at::Tensor whole = whole_value(executor_, slot, microbatch, tensor);
    const at::Tensor full = backward ? unscaled(executor_, whole) : whole;
    const at::Tensor* const kept = reference_.activation(key_of(program_, i, slot, microbatch));
    if (kept == nullptr || parted_) return;
    const double error =
        relative(full.to(at::kDouble), kept->to(at::kDouble), backward ? 1e-6 * floor_ : 0);
    if (error <= outcome_.tolerance) return;
    parted_ = true;
    const auto ops = static_cast<std::int64_t>(program_.graph->ops().size());
    const std::int64_t order = 2 * ops * microbatch + (backward ? 2 * ops - 1 - i.op : i.op);
    std::lock_guard lock(mutex_);
    // Ranks come here in any order. The divergence with the least order is the first.
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

  void gradients(RankRun&) override {
    if (done_) return;
    done_ = true;
    if (end_.step == 0 && end_.before_update) return;
    for_each(true, [&](int p, const at::Tensor& whole, const at::Tensor& reference) {
      const double error = relative_where_finite(whole, reference, 1e-6 * floor_);
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].gradient;
      known = std::max(known, error);
    });
  }

  // Compares steps up to the one where one rank stops being finite. The mix must do so there too.
  void stepped(RankRun&, std::int64_t step, const StepOutcome& outcome) override {
    if (activations_ || step > end_.step) return;
    const bool last = step == end_.step && end_.before_update;
    if (!last && (step == end_.step || step + 1 == outcome_.steps ||
                  (step + 1 == end_.step && end_.before_update)))
      parameters(outcome.lr);
    const auto error = [&](double x, double reference, double floor) {
      return last && std::isfinite(x) == std::isfinite(reference) ? 0
                                                                  : relative(x, reference, floor);
    };
    std::lock_guard lock(mutex_);
    const double loss = error(outcome.loss, reference_.loss(step), loss_floor);
    const double norm = error(outcome.grad_norm, reference_.norm(step), norm_floor);
    outcome_.loss = std::max(outcome_.loss, loss);
    outcome_.grad_norm = std::max(outcome_.grad_norm, norm);
    if (step > 0) return;
    outcome_.first_loss = std::max(outcome_.first_loss, loss);
    outcome_.first_norm = std::max(outcome_.first_norm, norm);
  }

 private:
  // Visits each parameter of this rank, whole, together with the reference's. Where ranks are in
  // several processes, each takes the reference's parameters of all stages, in one order.
  template <class Visit>
  void for_each(bool gradients, const Visit& visit) {
    for (const Program& program : plan_.programs) {
      const bool own = program.stage == program_.stage;
      if (!own && !taker_.shared()) continue;
      for (std::size_t b = 0; b < program.buckets.size(); ++b) {
        if (gradients && program.buckets[b].frozen) continue;
        const at::Tensor flat =
            own ? executor_.whole(static_cast<int>(b), gradients) : at::Tensor();
        for (const int p : program.buckets[b].parameters) {
          const at::Tensor whole =
              own ? whole_parameter(executor_, p, flat, gradients) : at::Tensor();
          at::Tensor reference;
          for (int replica = 0; replica < program.replicas(); ++replica) {
            const at::Tensor one =
                taker_.take(gradients, name_in_replica(replica, program.name_of_parameter(p)));
            if (replica == program.replica_of(executor_.coordinates())) reference = one;
          }
          if (own) visit(p, whole, reference);
        }
      }
    }
  }

  // Compares parameters. `lr`: the learning rate of the last step. Adam moves an element by about
  // that, so a parameter that began at zero is measured against such a move.
  void parameters(double lr) {
    for_each(false, [&](int p, const at::Tensor& whole, const at::Tensor& reference) {
      if (negligible(p)) return;
      const auto count = static_cast<double>(program_.graph->count(program_.parameters[p].value));
      const double error = relative_where_finite(whole, reference, lr * std::sqrt(count));
      std::lock_guard lock(mutex_);
      double& known = outcome_.errors[place_[p]].parameter;
      known = std::max(known, error);
    });
  }

  // Whether a gradient is zero but for rounding (a key's bias). Adam then magnifies the rounding as
  // far as its eps allows, so the parameter is not compared.
  bool negligible(std::size_t p) const {
    if (program_.parameters[p].gradient_slot < 0) return false;  // frozen: it must stay
    return reference_.gradient_norm(name_in_replica(executor_, static_cast<int>(p))) <=
           1e-12 * floor_;
  }

  const Reference& reference_;
  Reference::Taker taker_;
  const Plan& plan_;
  RankRun& executor_;
  const Program& program_;
  VerifyOutcome& outcome_;
  std::mutex& mutex_;
  const double floor_;
  const bool activations_;
  const NotFinite end_;
  std::vector<std::ptrdiff_t> place_;  // by parameter of the program: its place in the graph's
  bool parted_ = false, done_ = false;
};

// Merges the outcomes of all processes. Every process gets the result.
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

void compare(const RunSetup& experiment, const Plan& plan, const Reference& reference,
             std::int64_t steps, const std::atomic<bool>* stop, bool activations,
             VerifyOutcome& outcome) {
  std::mutex mutex;
  const double floor = std::max(reference.norm(0), norm_floor);
  RankRuntime runtime = runtime_of(experiment, plan);
  run_steps(runtime, experiment, plan, steps, stop, [&](RankRun& executor) {
    return std::make_unique<Comparer>(reference, runtime, plan, executor, outcome, mutex, floor,
                                      activations);
  });
  if (experiment.processes != nullptr) merge(*experiment.processes, outcome);
}

// If every activation and its gradient agree, the fault lies in a parameter's own gradient: names
// the first parameter, in the order of backward, whose gradient differs, and an op that uses it.
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

// The plan, with outer steps so often that some come within the few steps that are compared.
std::shared_ptr<const Plan> often_together(const std::shared_ptr<const Plan>& plan) {
  const auto& outer = plan->programs.front().outer;
  if (outer == nullptr || outer->every <= 2) return plan;
  auto often = std::make_shared<OuterSteps>(*outer);
  often->every = 2;
  often->delay = std::min<std::int64_t>(often->delay, 1);
  auto made = std::make_shared<Plan>(*plan);
  for (Program& program : made->programs) program.outer = often;
  return made;
}

// Gradients are compared in the first step: it must have some.
void check_labels(const RunSetup& experiment) {
  const TokenSource& data = *experiment.data;
  if (!data.masks_labels()) return;
  const PlanRequest& request = experiment.plan_at(0).request;
  const auto counted =
      data.counted_labels(experiment.first_sample(0), request.batch, request.sequence);
  if (std::any_of(counted->begin(), counted->end(), [](std::int64_t n) { return n > 0; })) return;
  throw Error(Stage::run, "verify.no-labels", "data",
              "data: no label of the first step counts, so that there are no gradients to compare",
              "verify with samples of which some labels count");
}

}  // namespace

VerifyOutcome verify(const RunSetup& experiment, std::int64_t steps, double tolerance,
                     const std::atomic<bool>* stop) try {
  check_thread_ranks(*experiment.plan,
                     experiment.processes);  // throws before the reference is run
  check_labels(experiment);
  if (experiment.steps > 0) steps = std::min(steps, experiment.steps);
  const auto plan = often_together(in_double(*experiment.plan));
  const bool replicas = plan->programs.front().outer != nullptr;
  // Its whole batch at once: a fault of the accumulation over microbatches must show.
  const auto one =
      replicas ? often_together(one_rank_replicas(*plan)) : one_rank_plan(*plan, false);
  VerifyOutcome outcome;
  outcome.steps = steps;
  outcome.tolerance = tolerance;
  if (replicas) {
    outcome.replicas = plan->programs.front().replicas();
    outcome.first_outer_step =
        plan->programs.front().outer->every + plan->programs.front().outer->delay;
  }
  for (int value : plan->graph->parameters()) {
    outcome.errors.push_back({plan->graph->value(value).name, 0, 0});
  }
  const Reference reference(experiment, *one, nullptr, steps, stop);
  compare(experiment, *plan, reference, steps, stop, false, outcome);
  for (const ParameterError& e : outcome.errors) {
    if (outcome.worst.empty() || e.gradient > outcome.gradients) outcome.worst = e.name;
    outcome.gradients = std::max(outcome.gradients, e.gradient);
    outcome.parameters = std::max(outcome.parameters, e.parameter);
  }
  const NotFinite& end = reference.end();
  const LossyHooks lossy = lossy_hooks(*plan);
  outcome.lossy = lossy.names;
  outcome.lossy_gathers = lossy.gathering;
  const double first = std::max({outcome.first_loss, outcome.first_norm, outcome.gradients});
  const double all = std::max({first, outcome.loss, outcome.grad_norm, outcome.parameters});
  if (lossy.names.empty() && all <= tolerance) {
    outcome.undecided = end.step < steps;
    outcome.equal = !outcome.undecided;
    outcome.not_finite = end.what;
    outcome.steps = end.step + (end.step < steps && !end.before_update ? 1 : 0);
    return outcome;
  }
  if (lossy.names.empty() && first <= tolerance && !replicas) {
    follow(experiment, *plan, *one, steps, stop, outcome);
    if (outcome.equal || outcome.undecided) return outcome;
  }
  // Replicas have a step's samples in another order than one rank: no activation lies as there.
  // A gather that loses bits changes every activation.
  if (!replicas && lossy.gathering.empty()) {
    const auto alike = one_rank_plan(*plan, true);
    const Reference detailed(experiment, *alike, plan.get(), 1, stop);
    compare(experiment, *plan, detailed, 1, stop, true, outcome);
  }
  if (!outcome.diverged && lossy.gathering.empty())
    blame_parameter(*plan->graph, lossy.parameters, outcome);
  return outcome;
} catch (const Stopped& stopped) {
  if (experiment.processes != nullptr && dynamic_cast<const StoppedAll*>(&stopped) == nullptr)
    throw;  // the other processes do not know of it
  VerifyOutcome outcome;
  outcome.interrupted = true;
  return outcome;
}

}  // namespace mw
