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
#include "predict/prediction.h"

namespace mw {
namespace {

struct PricedLayout {
  std::shared_ptr<const Plan> plan;  // null: it is refused
  Prediction predicted;
  bool fits = false;
  std::int64_t peak() const { return predicted.fullest().memory.peak; }
  // Whether this layout is to be taken instead of the other: it alone fits; or neither does, and it
  // holds less; or its step is shorter by more than `share` of the other's.
  bool better_than(const PricedLayout& other, double share) const {
    if (plan == nullptr) return false;
    if (other.plan == nullptr || fits != other.fits) return other.plan == nullptr || fits;
    if (!fits && peak() != other.peak()) return peak() < other.peak();
    return predicted.step_seconds < other.predicted.step_seconds * (1 - share);
  }
};

// Seconds that each virtual stage computes for a microbatch, as predicted.
std::vector<double> seconds_of(const PricedLayout& tried) {
  const Plan& plan = *tried.plan;
  std::vector<double> seconds(plan.stage_layers.size(), 0);
  for (const auto& stage : tried.predicted.actions) {
    for (const TimedAction& action : stage) {
      const bool works =
          action.name == "F" || action.name == "B" || action.name == "I" || action.name == "W";
      if (works && action.vstage >= 0)
        seconds[action.vstage] += (action.end - action.start) / plan.schedule.microbatches;
    }
  }
  return seconds;
}

// What layers and ends cost by those seconds: layers in the proportions that are declared.
LayerCosts costs_of(const PricedLayout& tried) {
  const std::vector<int>& layers = tried.plan->stage_layers;
  const std::vector<double> seconds = seconds_of(tried);
  LayerCosts costs = declared_costs(*tried.plan->graph);
  double declared = costs.first, predicted = 0;
  auto layer = costs.layers.begin();
  std::vector<double> own;  // declared, of the layers of each virtual stage
  for (const int count : layers) {
    own.push_back(std::accumulate(layer, layer + count, 0.0));
    layer += count;
  }
  for (std::size_t v = 0; v + 1 < layers.size(); ++v) {
    declared += own[v];
    predicted += seconds[v];
  }
  if (declared <= 0 || predicted <= 0) return costs;
  const double scale = predicted / declared;
  for (double& cost : costs.layers) cost *= scale;
  costs.first = std::max(0.0, seconds.front() - scale * own.front());
  costs.last = std::max(0.0, seconds.back() - scale * own.back());
  return costs;
}

class Balancer {
 public:
  Balancer(const PlanRequest& request, const Machine& machine, std::int64_t memory, int tries)
      : request_(request), machine_(machine), memory_(memory), left_(tries) {}

  std::shared_ptr<const Plan> run(std::shared_ptr<const Plan> own) {
    stage_of_ = own->schedule.stage_of;
    const PricedLayout first = tried_[own->stage_layers] = priced(own);
    const std::vector<int> even =
        even_layers(own->graph->layers, static_cast<int>(stage_of_.size()));
    plan(even);
    best_ = tried_.at(even);  // which stands where others gain nothing
    if (first.better_than(best_, 0)) best_ = first;
    consider(balance_layers(costs_of(first), stage_of_));
    while (left_ > 0 && step()) {
    }
    return noted(even);
  }

 private:
  PricedLayout priced(std::shared_ptr<const Plan> plan) const {
    throw_if_stopped();
    PricedLayout tried;
    tried.predicted = predict(*plan, machine_, request_.threads);
    tried.fits = tried.predicted.fits && tried.predicted.host_fits() &&
                 (memory_ <= 0 || tried.peak() <= memory_);
    tried.plan = std::move(plan);
    return tried;
  }

  // Plans and prices the layout; false if that was done before.
  bool plan(const std::vector<int>& layers) {
    const auto [found, missing] = tried_.try_emplace(layers);
    if (!missing) return false;
    PlanRequest request = request_;
    request.stage_layers = layers;
    if (const auto plan = plan_if_possible(request)) found->second = priced(plan);
    return true;
  }

  // Whether it is better than all before, by a thousandth of a step.
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
    std::vector<double> load(static_cast<std::size_t>(best_.plan->stages()), 0);
    if (best_.fits) {
      load = stage_costs(costs_of(best_), layers, stage_of_);
    } else {
      for (std::size_t s = 0; s < load.size(); ++s)
        load[s] = static_cast<double>(best_.predicted.stages[s].memory.peak);
    }
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

  // The best plan. Where its layout is not the even one it is made again, with a note of what was
  // chosen instead of the strategy's own note.
  std::shared_ptr<const Plan> noted(const std::vector<int>& even) const {
    constexpr double worth = 5e-3;  // of a step: the even layout stands where others gain less
    if (const PricedLayout& evenly = tried_.at(even);
        best_.plan == evenly.plan || !best_.better_than(evenly, worth))
      return evenly.plan;
    PlanRequest request = request_;
    request.stage_layers = best_.plan->stage_layers;
    const PricedLayout& evenly = tried_.at(even);
    request.notes.push_back(fmt::format(
        "stages of {} layers, by predicted times and memory: {} a step; even ones {}",
        fmt::join(request.stage_layers, ", "), duration_text(best_.predicted.step_seconds),
        evenly.plan == nullptr
            ? "are refused"
            : fmt::format("would take {}{}", duration_text(evenly.predicted.step_seconds),
                          evenly.fits ? "" : ", and not fit")));
    Problems none;
    return make_plan(request, none);
  }

  const PlanRequest& request_;
  const Machine& machine_;
  const std::int64_t memory_;
  std::vector<int> stage_of_;
  std::map<std::vector<int>, PricedLayout> tried_;
  PricedLayout best_;
  int left_;
};

}  // namespace

std::shared_ptr<const Plan> make_balanced_plan(const PlanRequest& request, const Machine& machine,
                                               std::int64_t memory, Problems& problems, int tries) {
  std::shared_ptr<const Plan> own = make_plan(request, problems);
  const bool open = own != nullptr && request.stage_layers.empty() && own->stages() > 1 &&
                    !own->stage_layers.empty();
  return open ? Balancer(request, machine, memory, tries).run(std::move(own)) : own;
}

}  // namespace mw
