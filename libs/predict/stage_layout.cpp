// Plans and prices layouts of a pipeline's stages, and keeps the best.
#include "predict/stage_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/text.h"
#include "meshwright/stage_balance.h"
#include "predict/fit.h"

namespace mw {
namespace {

// Most layouts that are tried where recompute is searched for each of them.
constexpr int most_searched = 3;
constexpr double plans_of_a_search = 60;  // about how many plans a search for recompute makes

// A layout of stages and what it is judged by. Without a plan: the layout is refused.
struct PricedLayout : PredictedPlan {
  bool fits = true;
  double seconds = 0;  // of a step; or what the busiest stage has to do, by declared costs
  double full = 0;     // of the fullest rank: its share of a device, or its bytes
  // Whether this layout is to be taken instead of the other: it alone fits; or neither does, and it
  // holds less; or its step is shorter by more than `share` of the other's.
  bool better_than(const PricedLayout& other, double share = 0) const {
    if (plan == nullptr) return false;
    if (other.plan == nullptr || fits != other.fits) return other.plan == nullptr || fits;
    if (!fits && full != other.full) return full < other.full;
    return seconds < other.seconds * (1 - share);
  }
};

PricedLayout judged(PredictedPlan plan, std::int64_t memory) {
  const Prediction& p = plan.predicted;
  const bool fits = p.fits && p.host_fits() && (memory <= 0 || p.highest_peak() <= memory);
  const double seconds = p.step_seconds, full = p.fullest().filled();
  return {std::move(plan), fits, seconds, full};
}

PricedLayout priced_layout(std::shared_ptr<const Plan> plan, const Machine& machine,
                           std::int64_t memory, int threads) {
  throw_if_stopped();
  Prediction predicted = predict(*plan, machine, threads);
  return judged({std::move(plan), std::move(predicted)}, memory);
}

// The note on the layout that was chosen, and on what even stages would take.
std::string layout_note(const std::vector<int>& layers, const char* of, double seconds,
                        const PricedLayout& even) {
  return fmt::format(
      "stages of {} layers, by predicted times {}and memory: {} a step; even ones {}",
      fmt::join(layers, ", "), of, duration_text(seconds),
      even.plan == nullptr ? "are refused"
                           : fmt::format("would take {}{}", duration_text(even.seconds),
                                         even.fits ? "" : ", and not fit"));
}

// Seconds that each virtual stage computes for a microbatch, as predicted. Works of a group, which
// go on at once, take equal shares of them.
std::vector<double> seconds_of(const PricedLayout& tried) {
  const Plan& plan = *tried.plan;
  std::vector<double> seconds(plan.stage_layers.size(), 0);
  for (const auto& stage : tried.predicted.actions) {
    for (const TimedAction& action : stage) {
      const bool works =
          action.name == "F" || action.name == "B" || action.name == "I" || action.name == "W";
      if (works && action.vstage >= 0)
        seconds[action.vstage] +=
            (action.end - action.start) / (action.lanes * plan.schedule.microbatches);
    }
  }
  return seconds;
}

// The costs of layers and ends by the seconds that stages are predicted to compute; layers keep the
// proportions of their declared costs. Where stages recompute different parts, each stage's layers
// cost what they take there, and the layers of an end stage what they take on the stage beside it.
LayerCosts costs_of(const PricedLayout& tried) {
  const std::vector<int>& layers = tried.plan->stage_layers;
  const std::vector<double> seconds = seconds_of(tried);
  LayerCosts costs = declared_costs(*tried.plan->graph);
  double declared = costs.first, predicted = 0;
  auto layer = costs.layers.begin();
  std::vector<double> own;  // declared costs of the layers of each virtual stage
  for (const int count : layers) {
    own.push_back(std::accumulate(layer, layer + count, 0.0));
    layer += count;
  }
  for (std::size_t v = 0; v + 1 < layers.size(); ++v) {
    declared += own[v];
    predicted += seconds[v];
  }
  if (declared <= 0 || predicted <= 0) return costs;
  std::vector<double> scales(layers.size(), predicted / declared);
  if (recompute_differs(*tried.plan) && layers.size() > 2) {
    for (std::size_t v = 1; v + 1 < layers.size(); ++v) scales[v] = seconds[v] / own[v];
    scales.front() = scales[1];
    scales.back() = scales[layers.size() - 2];
  }
  auto cost = costs.layers.begin();
  for (std::size_t v = 0; v < layers.size(); ++v) {
    for (int n = 0; n < layers[v]; ++n) *cost++ *= scales[v];
  }
  costs.first = std::max(0.0, seconds.front() - scales.front() * own.front());
  costs.last = std::max(0.0, seconds.back() - scales.back() * own.back());
  return costs;
}

// Walks from a layout to others that differ from it by a layer, as long as they are better.
class LayoutWalk {
 public:
  virtual ~LayoutWalk() = default;

 protected:
  LayoutWalk(const PlanRequest& request, std::int64_t memory, int tries,
             const PlanMaker& make = make_plan)
      : request_(request), memory_(memory), make_(make), left_(tries) {}

  virtual PricedLayout priced(std::shared_ptr<const Plan> plan) const = 0;
  virtual bool better(const PricedLayout& one, const PricedLayout& other) const = 0;
  // Whether a layout is worth a plan.
  virtual bool hopeful(const std::vector<int>&) const { return true; }

  PricedLayout in(const std::vector<int>& layers) const {
    throw_if_stopped();
    PlanRequest request = request_;
    request.stage_layers = layers;
    auto plan = plan_if_possible(request, nullptr, make_);
    return plan ? priced(std::move(plan)) : PricedLayout{};
  }

  // Tries the layout, once. Whether it is better than all before.
  bool consider(const std::vector<int>& layers) {
    if (!hopeful(layers) || !tried_.insert(layers).second) return false;
    --left_;
    PricedLayout found = in(layers);
    if (!better(found, best_)) return false;
    best_ = std::move(found);
    return true;
  }

  // Moves one layer of the best layout from one of the stages `from` to one of the stages `to`.
  bool move(std::span<const int> from, std::span<const int> to) {
    const std::vector<int> layers = best_.plan->stage_layers;
    for (const int giver : from) {
      for (const int taker : to) {
        const std::vector<int> moved = with_move(layers, stage_of_, giver, taker);
        if (left_ > 0 && giver != taker && !moved.empty() && consider(moved)) return true;
      }
    }
    return false;
  }

  // The best plan, made again with a note of what was chosen instead of the strategy's own note.
  std::shared_ptr<const Plan> noted(std::string note) const {
    PlanRequest request = best_.plan->request;  // with the recompute chosen for this layout
    request.stage_layers = best_.plan->stage_layers;
    request.notes.push_back(std::move(note));
    return plan_if_possible(request);
  }

  const PlanRequest& request_;
  const std::int64_t memory_;
  const PlanMaker make_;
  std::vector<int> stage_of_;
  std::set<std::vector<int>> tried_;
  PricedLayout best_;
  int left_;
};

// Looks for the layout whose busiest stage has least to do by declared costs, where no machine is
// named.
class CostWalk : public LayoutWalk {
 public:
  CostWalk(const PlanRequest& request, std::int64_t memory)
      : LayoutWalk(request, memory, most_tries) {}

  // `plan`: of the strategy's own layout.
  std::shared_ptr<const Plan> run(std::shared_ptr<const Plan> plan) {
    costs_ = declared_costs(*plan->graph);
    stage_of_ = plan->schedule.stage_of;
    const PricedLayout own = best_ = priced(std::move(plan));
    const std::vector<int>& layers = own.plan->stage_layers;
    tried_ = {layers};
    consider(even_layers(own.plan->graph->layers, static_cast<int>(layers.size())));
    while (step()) {
    }
    if (best_.plan == own.plan) return own.plan;
    return noted(fmt::format(
        "stages of {} layers, by declared costs and memory: {} a rank at most, "
        "where {} would need {}",
        fmt::join(best_.plan->stage_layers, ", "), memory_text(best_.predicted.highest_peak()),
        fmt::join(layers, ", "), memory_text(own.predicted.highest_peak())));
  }

 private:
  static constexpr int most_tries = 24;  // layouts that are planned beside the strategy's own
  static constexpr double rounding = 1e-9;

  double cost_of(const std::vector<int>& layers) const {
    return std::ranges::max(stage_costs(costs_, layers, stage_of_));
  }

  // Seconds are declared costs here, and devices are not known.
  PricedLayout priced(std::shared_ptr<const Plan> plan) const override {
    Prediction p;
    p.step_seconds = cost_of(plan->stage_layers);
    for (const Program& program : plan->programs) {
      StageForecast& stage = p.stages.emplace_back();
      stage.memory.peak = stage.most.peak =
          highest_peak({&program, 1}, plan->request.scratch.get());
    }
    return judged({std::move(plan), std::move(p)}, memory_);
  }

  bool better(const PricedLayout& one, const PricedLayout& other) const override {
    const bool both = one.plan != nullptr && one.fits == other.fits;
    const bool equal = std::abs(one.seconds - other.seconds) <= rounding * other.seconds;
    return both && (equal || !one.fits) ? one.full < other.full : one.better_than(other);
  }

  bool hopeful(const std::vector<int>& layers) const override {
    return !best_.fits || cost_of(layers) <= best_.seconds * (1 + rounding);
  }

  // Moves a layer from the stage that needs most memory to one of the others, those that need least
  // first.
  bool step() {
    const std::vector<StageForecast>& stages = best_.predicted.stages;
    std::vector<int> order(stages.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int stage) { return stages[stage].memory.peak; });
    return move(std::span(order).last(1), order);
  }

  LayerCosts costs_;
};

// Looks for the layout with the shortest step on a machine.
class Balancer : public LayoutWalk {
 public:
  Balancer(const PlanRequest& request, const Machine& machine, std::int64_t memory, int tries,
           const PlanMaker& make = make_plan)
      : LayoutWalk(request, memory, tries, make), machine_(machine) {}

  // Finds the best layout. `own`: the strategy's layout, which has no plan where it is refused. The
  // result has no plan where the even layout is refused as well.
  PredictedPlan run(const PricedLayout& own, const std::vector<int>& even) {
    const bool known = own.plan != nullptr && own.plan->stage_layers == even;
    evenly_ = known ? own : in(even);
    if (own.plan == nullptr && evenly_.plan == nullptr) return {};
    best_ = own.better_than(evenly_) ? own : evenly_;  // the even one where others gain nothing
    stage_of_ = best_.plan->schedule.stage_of;
    tried_ = {even};
    if (own.plan != nullptr) tried_.insert(own.plan->stage_layers);
    consider(balance_layers(costs_of(own.plan != nullptr ? own : best_), stage_of_));
    // Recompute changes with the layout, and so do the costs.
    while (left_ > 0 && recompute_differs(*best_.plan) &&
           consider(balance_layers(costs_of(best_), stage_of_))) {
    }
    for (int round = 0; machine_.uneven() && round < 2; ++round) consider(evened());
    while (left_ > 0 && step()) {
    }
    return chosen();
  }

 private:
  PricedLayout priced(std::shared_ptr<const Plan> plan) const override {
    return priced_layout(std::move(plan), machine_, memory_, request_.threads);
  }

  // Better by a thousandth of a step.
  bool better(const PricedLayout& one, const PricedLayout& other) const override {
    return one.better_than(other, 1e-3);
  }

  // Moves one layer from the stages that are busiest, or hold most, to those that are least so.
  bool step() {
    const std::vector<double> load = loads();
    std::vector<int> order(load.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[a] > load[b]; });
    constexpr std::size_t looked_at = 3;
    const std::size_t some = std::min(looked_at, order.size() / 2);
    const std::vector<int> least(order.rbegin(),
                                 order.rbegin() + static_cast<std::ptrdiff_t>(some));
    return move(std::span(order).first(some), least);
  }

  // The load of each stage of the best layout, which moves of layers are to even out: seconds, or
  // how full a device is where the layout does not fit.
  std::vector<double> loads() const {
    if (best_.fits) {
      return machine_.uneven() ? seconds_by_stage()
                               : stage_costs(costs_of(best_), best_.plan->stage_layers, stage_of_);
    }
    std::vector<double> load;
    for (const StageForecast& stage : best_.predicted.stages) load.push_back(stage.filled());
    return load;
  }

  // A layout for stages whose devices are not alike: one layer after another moves from the stage
  // with the highest load, as long as the highest load becomes less. A layer adds to a stage's load
  // in proportion to what the best layout's layers do there, by their declared costs.
  std::vector<int> evened() const {
    const LayerCosts declared = declared_costs(*best_.plan->graph);
    std::vector<int> layers = best_.plan->stage_layers;
    std::vector<double> rates = loads();
    const std::vector<double> own = stage_costs(declared, layers, stage_of_);
    for (std::size_t s = 0; s < rates.size(); ++s) rates[s] = own[s] > 0 ? rates[s] / own[s] : 0;
    const auto load_of = [&](const std::vector<int>& of) {
      std::vector<double> load = stage_costs(declared, of, stage_of_);
      for (std::size_t s = 0; s < load.size(); ++s) load[s] *= rates[s];
      return load;
    };
    for (;;) {
      const std::vector<double> load = load_of(layers);
      const auto most = std::ranges::max_element(load);
      const auto from = static_cast<int>(most - load.begin());
      double least = *most * (1 - 1e-9);
      std::vector<int> better;
      for (int to = 0; to < static_cast<int>(load.size()); ++to) {
        std::vector<int> moved;
        if (to != from) moved = with_move(layers, stage_of_, from, to);
        if (moved.empty()) continue;
        const double now = std::ranges::max(load_of(moved));
        if (now >= least) continue;
        least = now;
        better = std::move(moved);
      }
      if (better.empty()) return layers;
      layers = std::move(better);
    }
  }

  // Seconds that each stage computes for a microbatch on devices that are not alike.
  std::vector<double> seconds_by_stage() const {
    const std::vector<double> seconds = seconds_of(best_);
    std::vector<double> load(static_cast<std::size_t>(best_.plan->stages()), 0);
    for (std::size_t v = 0; v < seconds.size(); ++v) load[stage_of_[v]] += seconds[v];
    return load;
  }

  // The best plan, or that of the even layout.
  PredictedPlan chosen() const {
    constexpr double worth = 5e-3;  // share of a step: the even layout stays if others gain less
    if (best_.plan == evenly_.plan || !best_.better_than(evenly_, worth)) return evenly_;
    return {noted(layout_note(best_.plan->stage_layers, "", best_.seconds, evenly_)),
            best_.predicted};
  }

  const Machine& machine_;
  PricedLayout evenly_;
};

// The even layout of a pipeline that balances its stages itself, where the request gives no layers;
// else empty. `own`: the request's plan; null where that is refused, maybe because nothing fits in
// its layout.
std::vector<int> even_for(const PlanRequest& request, std::shared_ptr<const Plan> own) {
  if (!request.stage_layers.empty()) return {};
  if (own == nullptr) {
    PlanRequest placed = request;
    placed.placements_only = true;
    placed.recompute = {};
    own = plan_if_possible(placed);
  }
  if (own == nullptr || own->stage_layers.size() < 2) return {};
  return even_layers(own->graph->layers, static_cast<int>(own->stage_layers.size()));
}

// How many layouts to try: `tries`, or fewer where recompute is searched for each.
int layouts_to_try(const PlanRequest& request, const std::shared_ptr<const Plan>& own, int tries) {
  if (request.recompute.kind != RecomputePolicy::Kind::fit || own == nullptr) return tries;
  const double layouts = most_improvement / (plans_of_a_search * own->work);
  return std::min({tries, most_searched, static_cast<int>(std::min(layouts, 100.0))});
}

// The plans of all steps in one layout: their mean seconds and the highest peak.
struct StepsInLayout : PricedLayout {
  std::shared_ptr<const StepPlans> all;  // null: one plan for all steps
  std::vector<std::shared_ptr<const Plan>> plans() const {
    return all ? all->plans : std::vector{plan};
  }
  std::vector<int> of_step() const { return all ? all->of_step : std::vector{0}; }
};

class StepsBalancer {
 public:
  StepsBalancer(const PlanRequest& request, const MicrobatchPolicy& policy, std::int64_t steps,
                const Machine& machine, std::int64_t memory)
      : request_(request), policy_(policy), steps_(steps), machine_(machine), memory_(memory) {}

  StepsInLayout run(Problems& problems) const {
    Problems of_own;
    const StepsInLayout own = in({}, of_own);
    PlanRequest largest = request_;
    if (own.plan != nullptr) {
      largest.batch = own.plan->request.batch;
      largest.microbatch = own.plan->request.microbatch;
      largest.sizes = own.plan->request.sizes;
      largest.smaller_batches = own.plan->request.smaller_batches;
    }
    const std::vector<int> even = even_for(largest, own.plan);
    if (even.empty() || (own.plan != nullptr && work_of(own) > most_improvement)) {
      problems.add(of_own);
      return own;
    }
    Problems none;
    const StepsInLayout evenly = in(even, none);
    StepsInLayout best = own.better_than(evenly) ? own : evenly;
    if (best.plan == nullptr) problems.add(of_own);
    if (best.plan == nullptr || own.plan == nullptr) return best;
    const auto balanced = make_balanced_plan(largest, machine_, memory_, none);
    if (balanced == nullptr || balanced->stage_layers == even ||
        balanced->stage_layers == own.plan->stage_layers)
      return best;
    const StepsInLayout other = in(balanced->stage_layers, none);
    if (!other.better_than(best)) return best;
    return planned_in(balanced->stage_layers, problems,
                      layout_note(balanced->stage_layers, "of all steps ", other.seconds, evenly));
  }

 private:
  static double work_of(const StepsInLayout& steps) {
    double work = 0;
    for (const auto& plan : steps.plans()) work += plan->work;
    return work;
  }

  // Plans all steps in the layout, without predicting them.
  StepsInLayout planned_in(const std::vector<int>& layers, Problems& problems,
                           const std::string& note = "") const {
    PlanRequest request = request_;
    if (!layers.empty()) request.stage_layers = layers;
    if (!note.empty()) request.notes.push_back(note);
    StepsInLayout steps;
    const PlanMaker make = [&](const PlanRequest& made, Problems& found) {
      return make_step_plans(made, policy_, steps_, steps.all, found);
    };
    steps.plan = plan_if_possible(request, &problems, make);
    return steps;
  }

  StepsInLayout in(const std::vector<int>& layers, Problems& problems) const {
    StepsInLayout steps = planned_in(layers, problems);
    if (steps.plan == nullptr) return steps;
    const auto plans = steps.plans();
    const std::vector<int> of_step = steps.of_step();
    for (std::size_t p = 0; p < plans.size(); ++p) {
      const PricedLayout priced = priced_layout(plans[p], machine_, memory_, request_.threads);
      const auto times = std::ranges::count(of_step, static_cast<int>(p));
      steps.seconds +=
          static_cast<double>(times) / static_cast<double>(of_step.size()) * priced.seconds;
      steps.full = std::max(steps.full, static_cast<double>(priced.predicted.highest_peak()));
      steps.fits = steps.fits && priced.fits;
    }
    return steps;
  }

  const PlanRequest& request_;
  const MicrobatchPolicy& policy_;
  const std::int64_t steps_;
  const Machine& machine_;
  const std::int64_t memory_;
};

}  // namespace

std::shared_ptr<const Plan> make_balanced_plan(const PlanRequest& request, const Machine& machine,
                                               std::int64_t memory, Problems& problems, int tries,
                                               const PlanMaker& make) {
  Problems of_own;
  std::shared_ptr<const Plan> own = plan_if_possible(request, &of_own, make);
  if (const std::vector<int> even = even_for(request, own); !even.empty()) {
    PricedLayout first;
    if (own != nullptr) first = priced_layout(own, machine, memory, request.threads);
    const int most = layouts_to_try(request, own, tries);
    own = Balancer(request, machine, memory, most, make).run(first, even).plan;
  }
  if (own == nullptr) problems.add(of_own);
  return own;
}

std::shared_ptr<const Plan> make_plan_within(const PlanRequest& request, std::int64_t memory,
                                             Problems& problems) {
  std::shared_ptr<const Plan> own = make_plan(request, problems);
  const bool open = own != nullptr && problems.empty() && request.stage_layers.empty() &&
                    own->stages() > 1 && !own->stage_layers.empty();
  return open ? CostWalk(request, memory).run(std::move(own)) : own;
}

PredictedPlan predict_balanced_plan(const PlanRequest& request, const Machine& machine,
                                    std::int64_t memory, PredictedPlan own) {
  const std::vector<int> even = even_for(request, own.plan);
  if (even.empty()) return own;
  const int most = layouts_to_try(request, own.plan, most_layouts);
  return Balancer(request, machine, memory, most).run(judged(std::move(own), memory), even);
}

std::shared_ptr<const Plan> make_balanced_step_plans(const PlanRequest& request,
                                                     const MicrobatchPolicy& policy,
                                                     std::int64_t steps, const Machine& machine,
                                                     std::int64_t memory,
                                                     std::shared_ptr<const StepPlans>& all,
                                                     Problems& problems) {
  PlanRequest made = request;
  made.microbatch = policy.size;
  if (!policy.shape) {
    return policy.search
               ? make_balanced_plan(made, machine, memory, problems, most_searched, policy.search)
               : make_balanced_plan(made, machine, memory, problems);
  }
  MicrobatchPolicy once = policy;  // a script's function is asked once for a step
  once.shape = [&policy, shapes = std::make_shared<std::map<std::int64_t, StepShape>>()](
                   std::int64_t step, std::int64_t sample) {
    const auto known = shapes->find(step);
    if (known != shapes->end()) return known->second;
    return shapes->emplace(step, policy.shape(step, sample)).first->second;
  };
  StepsInLayout best = StepsBalancer(request, once, steps, machine, memory).run(problems);
  all = std::move(best.all);
  return best.plan;
}

}  // namespace mw
