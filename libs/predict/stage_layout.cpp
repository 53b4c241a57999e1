// Plans and prices layouts of a pipeline's stages, and keeps the best.
#include "predict/stage_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/stage_balance.h"
#include "predict/fit.h"
#include "predict/prediction.h"

namespace mw {
namespace {

// Most layouts that are tried where recompute is searched for each of them.
constexpr int most_searched = 3;
constexpr double plans_of_a_search = 60;  // about how many plans a search for recompute makes

struct PricedLayout : PredictedPlan {  // without a plan: the layout is refused
  bool fits = false;
  std::int64_t peak() const { return predicted.highest_peak(); }
  double full() const { return predicted.fullest().filled(); }
  // Whether this layout is to be taken instead of the other: it alone fits; or neither does, and it
  // holds less; or its step is shorter by more than `share` of the other's.
  bool better_than(const PricedLayout& other, double share) const {
    if (plan == nullptr) return false;
    if (other.plan == nullptr || fits != other.fits) return other.plan == nullptr || fits;
    if (!fits && full() != other.full()) return full() < other.full();
    return predicted.step_seconds < other.predicted.step_seconds * (1 - share);
  }
};

PricedLayout judged(PredictedPlan plan, std::int64_t memory) {
  PricedLayout tried{std::move(plan)};
  tried.fits = tried.predicted.fits && tried.predicted.host_fits() &&
               (memory <= 0 || tried.peak() <= memory);
  return tried;
}

PricedLayout priced_layout(std::shared_ptr<const Plan> plan, const Machine& machine,
                           std::int64_t memory, int threads) {
  Prediction predicted = predict(*plan, machine, threads);
  return judged({std::move(plan), std::move(predicted)}, memory);
}

// The note on the layout that was chosen, and on what even stages would take (null: they are
// refused).
std::string layout_note(const std::vector<int>& layers, const char* of, double seconds,
                        const double* even, bool even_fits) {
  return fmt::format(
      "stages of {} layers, by predicted times {}and memory: {} a step; even ones {}",
      fmt::join(layers, ", "), of, duration_text(seconds),
      even == nullptr
          ? "are refused"
          : fmt::format("would take {}{}", duration_text(*even), even_fits ? "" : ", and not fit"));
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

// Plans a layout with `make`. A strategy's error is a refusal.
std::shared_ptr<const Plan> planned(const PlanMaker& make, const PlanRequest& request,
                                    Problems& problems) {
  try {
    return make(request, problems);
  } catch (const Error& error) {
    if (ends_all(error)) throw;
    problems.add(error);
    return nullptr;
  }
}

class Balancer {
 public:
  Balancer(const PlanRequest& request, const Machine& machine, std::int64_t memory, int tries,
           const PlanMaker& make)
      : request_(request), machine_(machine), memory_(memory), make_(make), left_(tries) {}

  // Finds the best layout. `own`: the strategy's layout, which has no plan where it is refused. The
  // result has no plan where the even layout is refused as well.
  PredictedPlan run(PricedLayout own, const std::vector<int>& even) {
    if (own.plan != nullptr) tried_[own.plan->stage_layers] = own;
    plan(even);
    best_ = tried_.at(even);  // the even layout stays where others gain nothing
    if (own.better_than(best_, 0)) best_ = own;
    if (best_.plan == nullptr) return {};
    stage_of_ = best_.plan->schedule.stage_of;
    consider(balance_layers(costs_of(own.plan != nullptr ? own : best_), stage_of_));
    // Recompute changes with the layout, and so do the costs.
    while (left_ > 0 && recompute_differs(*best_.plan) &&
           consider(balance_layers(costs_of(best_), stage_of_))) {
    }
    for (int round = 0; machine_.uneven() && round < 2; ++round) consider(evened());
    while (left_ > 0 && step()) {
    }
    return noted(even);
  }

 private:
  PricedLayout priced(std::shared_ptr<const Plan> plan) const {
    throw_if_stopped();
    return priced_layout(std::move(plan), machine_, memory_, request_.threads);
  }

  // Plans and prices the layout; false if that was done before.
  bool plan(const std::vector<int>& layers) {
    const auto [found, missing] = tried_.try_emplace(layers);
    if (!missing) return false;
    PlanRequest request = request_;
    request.stage_layers = layers;
    Problems none;
    if (const auto plan = planned(make_, request, none)) found->second = priced(plan);
    return true;
  }

  // Tries the layout. Whether it is better than all before, by a thousandth of a step.
  bool consider(const std::vector<int>& layers) {
    constexpr double least_gain = 1e-3;
    if (!plan(layers)) return false;
    --left_;
    const PricedLayout& found = tried_.at(layers);
    if (!found.better_than(best_, least_gain)) return false;
    best_ = found;
    return true;
  }

  // Moves one layer from the stages that are busiest, or hold most, to those that are least so.
  bool step() {
    const std::vector<int> layers = best_.plan->stage_layers;
    const std::vector<double> load = loads();
    std::vector<int> order(load.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[a] > load[b]; });
    constexpr std::size_t looked_at = 3;
    const std::size_t some = std::min(looked_at, order.size() / 2);
    for (std::size_t from = 0; from < some; ++from) {
      for (std::size_t to = 0; to < some; ++to) {
        const std::vector<int> moved =
            with_move(layers, stage_of_, order[from], order[order.size() - 1 - to]);
        if (left_ > 0 && !moved.empty() && consider(moved)) return true;
      }
    }
    return false;
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

  // The best plan. Where its layout is not the even one it is made again, with a note of what was
  // chosen instead of the strategy's own note.
  PredictedPlan noted(const std::vector<int>& even) const {
    constexpr double worth = 5e-3;  // share of a step: the even layout stays if others gain less
    const PricedLayout& evenly = tried_.at(even);
    if (best_.plan == evenly.plan || !best_.better_than(evenly, worth)) return evenly;
    PlanRequest request = best_.plan->request;  // with the recompute chosen for this layout
    request.stage_layers = best_.plan->stage_layers;
    request.notes.push_back(layout_note(request.stage_layers, "", best_.predicted.step_seconds,
                                        evenly.plan ? &evenly.predicted.step_seconds : nullptr,
                                        evenly.fits));
    Problems none;
    return {make_plan(request, none), best_.predicted};
  }

  const PlanRequest& request_;
  const Machine& machine_;
  const std::int64_t memory_;
  const PlanMaker& make_;
  std::vector<int> stage_of_;
  std::map<std::vector<int>, PricedLayout> tried_;
  PricedLayout best_;
  int left_;
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

// The plans of all steps in one layout.
struct StepsInLayout {
  std::shared_ptr<const Plan> plan;  // null: the plans are refused
  std::shared_ptr<const StepPlans> all;
  double seconds = 0;  // mean seconds of a step
  std::int64_t peak = 0;
  bool fits = true;
  bool better_than(const StepsInLayout& other) const {
    if (plan == nullptr) return false;
    if (other.plan == nullptr || fits != other.fits) return other.plan == nullptr || fits;
    return fits ? seconds < other.seconds : peak < other.peak;
  }
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
                      layout_note(balanced->stage_layers, "of all steps ", other.seconds,
                                  evenly.plan ? &evenly.seconds : nullptr, evenly.fits));
  }

 private:
  static double work_of(const StepsInLayout& steps) {
    if (steps.all == nullptr) return steps.plan->work;
    double work = 0;
    for (const auto& plan : steps.all->plans) work += plan->work;
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
    steps.plan = planned(make, request, problems);
    return steps;
  }

  StepsInLayout in(const std::vector<int>& layers, Problems& problems) const {
    StepsInLayout steps = planned_in(layers, problems);
    if (steps.plan == nullptr) return steps;
    const auto plans = steps.all ? steps.all->plans : std::vector{steps.plan};
    for (std::size_t p = 0; p < plans.size(); ++p) {
      throw_if_stopped();
      const PricedLayout priced = priced_layout(plans[p], machine_, memory_, request_.threads);
      const double share =
          steps.all == nullptr
              ? 1
              : static_cast<double>(std::count(steps.all->of_step.begin(), steps.all->of_step.end(),
                                               static_cast<int>(p))) /
                    static_cast<double>(steps.all->of_step.size());
      steps.seconds += share * priced.predicted.step_seconds;
      steps.peak = std::max(steps.peak, priced.peak());
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
  std::shared_ptr<const Plan> own = planned(make, request, of_own);
  if (const std::vector<int> even = even_for(request, own); !even.empty()) {
    PricedLayout first;
    if (own != nullptr) first = priced_layout(own, machine, memory, request.threads);
    const int most = layouts_to_try(request, own, tries);
    own = Balancer(request, machine, memory, most, make).run(std::move(first), even).plan;
  }
  if (own == nullptr) problems.add(of_own);
  return own;
}

PredictedPlan predict_balanced_plan(const PlanRequest& request, const Machine& machine,
                                    std::int64_t memory, PredictedPlan own) {
  const std::vector<int> even = even_for(request, own.plan);
  if (even.empty()) return own;
  const PlanMaker make = make_plan;
  const int most = layouts_to_try(request, own.plan, most_layouts);
  return Balancer(request, machine, memory, most, make).run(judged(std::move(own), memory), even);
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
