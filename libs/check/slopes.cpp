// Differentiates a step's loss numerically, and repeats a step to measure the error that lossy
// hooks make in its gradients.
#include "check/slopes.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "check/observe.h"
#include "check/tensor_pack.h"
#include "meshwright/autograd_op.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/ranks.h"

namespace mw {
namespace {

constexpr std::size_t most_slopes = 64;
constexpr double moved_by = 1e-5;         // typical distance by which an element is moved
constexpr double slope_tolerance = 1e-3;  // differences are good to some 1e-6 where nothing bends
constexpr double loss_noise = 1e-8;       // rounding of a loss, divided by moved_by

// The experiment without its plans for steps with other batches, so that each step is like the
// first.
RunSetup first_step_of(const RunSetup& experiment) {
  RunSetup alike = experiment;
  alike.step_plans = nullptr;
  return alike;
}

// Calls a function when a step's gradients are complete, before the update.
class GradientWatcher : public Watcher {
 public:
  using Take = std::function<void(RankRun&)>;
  explicit GradientWatcher(Take take) : take_(std::move(take)) {}
  void computed(const Instruction&, int, int, const at::Tensor&) override {}
  void gradients(RankRun& executor) override { take_(executor); }

 private:
  Take take_;
};

using Tensors = std::vector<at::Tensor>;

// Measures slopes on one rank, whose initial parameters are restored before each step.
class OneRank {
 public:
  explicit OneRank(RankRun& executor)
      : executor_(executor), generator_(at::detail::createCPUGenerator(1)) {
    for (std::size_t p = 0; p < executor.program().parameters.size(); ++p)
      parameters_.push_back(executor.parameter(static_cast<int>(p)).clone());
    GradientWatcher watcher([&](RankRun& at) {
      for (std::size_t p = 0; p < parameters_.size(); ++p) {
        const bool frozen = at.program().parameters[p].gradient_slot < 0;
        gradients_.push_back(frozen ? at::Tensor()
                                    : unscaled(at, at.gradient(static_cast<int>(p))).clone());
      }
    });
    executor.watch(&watcher);
    executor.step(0, 0);
    executor.unwatch(&watcher);
  }

  Slope slope(const std::vector<std::size_t>& moved, double by) {
    Slope slope;
    Tensors directions;
    double squares = 0;
    for (const std::size_t p : moved) {
      slope.parameters.push_back(executor_.program().name_of_parameter(static_cast<int>(p)));
      directions.push_back(at::randn(parameters_[p].sizes(), generator_, parameters_[p].options()));
      slope.backward += (directions.back() * gradients_[p]).sum().item<double>();
      squares += gradients_[p].square().sum().item<double>();
    }
    slope.size = std::sqrt(squares);
    slope.differences =
        (loss_at(moved, directions, by) - loss_at(moved, directions, -by)) / (2 * by);
    return slope;
  }

  bool stopped = false;  // a step reported a wish to stop

 private:
  double loss_at(const std::vector<std::size_t>& moved, const Tensors& directions, double by) {
    for (std::size_t p = 0; p < parameters_.size(); ++p)
      executor_.parameter(static_cast<int>(p)).copy_(parameters_[p]);
    for (std::size_t i = 0; i < moved.size(); ++i)
      executor_.parameter(static_cast<int>(moved[i])).add_(directions[i], by);
    const StepOutcome outcome = executor_.step(0, 0);
    stopped = stopped || outcome.stop;
    return outcome.loss;
  }

  RankRun& executor_;
  at::Generator generator_;
  Tensors parameters_, gradients_;
};

// The parameters whose gradients the loss determines, in graph order, in at most most_slopes
// groups.
std::vector<std::vector<std::size_t>> grouped(const Program& program) {
  std::vector<std::size_t> places;
  const std::set<int> estimated = before_straight_through(*program.graph);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const int value = program.parameters[p].value;
    const Value& parameter = program.graph->value(value);
    if (!parameter.counts && !parameter.frozen && !estimated.contains(value)) places.push_back(p);
  }
  if (places.empty()) return {};
  std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    return program.parameters[a].value < program.parameters[b].value;
  });
  const std::size_t each = (places.size() + most_slopes - 1) / most_slopes;
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (i % each == 0) groups.emplace_back();
    groups.back().push_back(places[i]);
  }
  return groups;
}

// Gradients of a parameter in a repeated step: the first, and the sum.
struct Sum {
  at::Tensor first, all;
  int brought = 0;  // number of gradients in `all`, over ranks and steps
};
template <class Pack>
void members(Pack& pack, Sum& sum) {
  pack(sum.first, sum.all, sum.brought);
}
// By a parameter's name: whole gradients, in float64.
using Gradients = std::map<std::string, Sum>;

// Adds up the gradients of all processes. Every process gets the sums.
Gradients of_all(Processes& processes, const Gradients& own) {
  Gradients sums;
  for (const std::string& bytes : processes.all_gather("what hooks left", pack(own))) {
    for (const auto& [name, sum] : unpack<Gradients>(bytes)) {
      Sum& known = sums[name];
      if (known.brought == 0) known.first = sum.first;
      known.all = known.brought == 0 ? sum.all : known.all + sum.all;
      known.brought += sum.brought;
    }
  }
  return sums;
}

// Runs the first step `steps` times from the same parameters, and adds up the gradients of the
// parameters in `of`.
Gradients repeated(const RunSetup& experiment, const Plan& plan, int steps,
                   const std::set<std::string>& of, const std::atomic<bool>* stop) {
  std::mutex mutex;
  Gradients sums;
  std::atomic<bool> stopped = false;
  with_ranks(experiment, plan, stop, [&](RankRun& executor, Ledger&) {
    const Program& program = executor.program();
    Tensors parameters;
    for (std::size_t p = 0; p < program.parameters.size(); ++p)
      parameters.push_back(executor.parameter(static_cast<int>(p)).clone());
    GradientWatcher watcher([&](RankRun& at) {
      for_each_parameter(at, true, [&](int p, const at::Tensor& whole) {
        const std::string& name = program.name_of_parameter(p);
        if (!of.contains(name)) return;
        const at::Tensor numbers = whole.to(at::kDouble);
        const std::lock_guard lock(mutex);
        Sum& sum = sums[name];
        if (sum.brought++ == 0) sum.first = numbers.clone();
        sum.all = sum.all.defined() ? sum.all + numbers : numbers.clone();
      });
    });
    executor.watch(&watcher);
    for (int step = 0; step < steps; ++step) {
      for (std::size_t p = 0; p < parameters.size(); ++p)
        executor.parameter(static_cast<int>(p)).copy_(parameters[p]);
      if (!executor.step(0, 0).stop) continue;
      stopped = true;  // the same on all ranks
      break;
    }
    executor.unwatch(&watcher);
  });
  if (stopped) throw Stopped("interrupted");
  const bool shared = experiment.processes != nullptr && plan.ranks() > 1;
  return shared ? of_all(*experiment.processes, sums) : sums;
}

}  // namespace

std::set<int> before_straight_through(const Graph& graph) {
  std::set<int> before;
  const auto& ops = graph.ops();
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    const bool through = dynamic_cast<const StraightThrough*>(op->type.get()) != nullptr;
    const bool leads = std::any_of(op->outputs.begin(), op->outputs.end(),
                                   [&](int value) { return before.contains(value); });
    if (!through && !leads) continue;
    for (const Use& use : op->inputs) before.insert(use.value);
  }
  return before;
}

bool Slope::agrees() const {
  const double error = std::abs(backward - differences);
  return error <=
         slope_tolerance * std::max({std::abs(backward), std::abs(differences), size}) + loss_noise;
}

std::vector<Slope> slopes(const RunSetup& experiment, const std::atomic<bool>* stop) {
  const auto one = one_rank_plan(*in_double(*experiment.plan), false);
  std::vector<Slope> found;
  bool stopped = false;
  with_ranks(first_step_of(experiment), *one, stop, [&](RankRun& executor, Ledger&) {
    OneRank rank(executor);
    for (const std::vector<std::size_t>& moved : grouped(executor.program())) {
      Slope slope = rank.slope(moved, moved_by);
      for (int again = 0; again < 2 && !slope.agrees(); ++again)
        slope = rank.slope(moved, moved_by / 10);
      found.push_back(std::move(slope));
      if (rank.stopped) break;
    }
    stopped = rank.stopped;
  });
  if (stopped) throw Stopped("interrupted");
  return found;
}

LossyGradients lossy_gradients(const RunSetup& experiment, int steps,
                               const std::atomic<bool>* stop) {
  const auto plan = in_double(*experiment.plan);
  const auto one = one_rank_plan(*plan, false);
  const RunSetup alike = first_step_of(experiment);
  const std::set<std::string> reduced = lossy_hooks(*plan).parameters;
  const Gradients exact = repeated(alike, *one, 1, reduced, stop);
  Gradients lossy = repeated(alike, *plan, steps, reduced, stop);
  double size = 0, first = 0, mean = 0;
  for (const auto& [name, sum] : exact) {
    const Sum& left = lossy[name];
    size += sum.all.square().sum().item<double>();
    first += (left.first - sum.all).square().sum().item<double>();
    mean += (left.all / left.brought - sum.all).square().sum().item<double>();
  }
  size = std::max(size, 1e-300);
  return {std::sqrt(first / size), std::sqrt(mean / size), steps};
}

}  // namespace mw
