// Shares layers out over stages by declared costs and by the memory that each stage needs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/stage_balance.h"
#include "predict/memory_limit.h"
#include "predict/prediction.h"

namespace mw {
namespace {

constexpr int most_tries = 24;  // layouts that are planned beside the strategy's own
constexpr double rounding = 1e-9;

struct PlannedLayout {
  std::shared_ptr<const Plan> plan;
  std::vector<std::int64_t> peaks;  // highest peak of each stage
  double cost = 0;                  // declared cost of the busiest stage
  std::int64_t peak() const { return *std::max_element(peaks.begin(), peaks.end()); }
};

class WithinMemory {
 public:
  WithinMemory(const PlanRequest& request, std::int64_t memory, std::shared_ptr<const Plan> own)
      : request_(request),
        memory_(memory),
        stage_of_(own->schedule.stage_of),
        costs_(declared_costs(*own->graph)) {
    tried_.insert(own->stage_layers);
    best_ = planned(std::move(own));
    own_peak_ = best_.peak();
  }

  std::shared_ptr<const Plan> run() {
    const std::vector<int> own = best_.plan->stage_layers;
    const auto parts = static_cast<int>(own.size());
    consider(even_layers(best_.plan->graph->layers, parts));
    while (step()) {
    }
    return best_.plan->stage_layers == own ? best_.plan : noted(own);
  }

 private:
  bool fits(const PlannedLayout& one) const { return memory_ <= 0 || one.peak() <= memory_; }

  double cost_of(const std::vector<int>& layers) const {
    const std::vector<double> stages = stage_costs(costs_, layers, stage_of_);
    return *std::max_element(stages.begin(), stages.end());
  }

  PlannedLayout planned(std::shared_ptr<const Plan> plan) const {
    PlannedLayout one;
    for (const Program& program : plan->programs)
      one.peaks.push_back(highest_peak({&program, 1}, plan->request.scratch.get()));
    one.cost = cost_of(plan->stage_layers);
    one.plan = std::move(plan);
    return one;
  }

  bool better(const PlannedLayout& one, const PlannedLayout& other) const {
    if (fits(one) != fits(other)) return fits(one);
    const bool equal = std::abs(one.cost - other.cost) <= rounding * other.cost;
    return fits(one) && !equal ? one.cost < other.cost : one.peak() < other.peak();
  }

  // Plans the layout if it may be better than the best one, and returns whether it is.
  bool consider(const std::vector<int>& layers) {
    const bool costs_more = cost_of(layers) > best_.cost * (1 + rounding);
    if ((fits(best_) && costs_more) || left_ == 0 || !tried_.insert(layers).second) return false;
    throw_if_stopped();
    --left_;
    PlanRequest request = request_;
    request.stage_layers = layers;
    auto plan = plan_if_possible(request);
    if (plan == nullptr) return false;
    PlannedLayout one = planned(std::move(plan));
    if (!better(one, best_)) return false;
    best_ = std::move(one);
    return true;
  }

  // Moves a layer from the stage that needs most memory to another, trying those that need least
  // first.
  bool step() {
    const std::vector<int> layers = best_.plan->stage_layers;
    const std::vector<std::int64_t> peaks = best_.peaks;
    std::vector<int> order(peaks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return peaks[a] < peaks[b]; });
    for (const int to : order) {
      const std::vector<int> moved = with_move(layers, stage_of_, order.back(), to);
      if (to != order.back() && !moved.empty() && consider(moved)) return true;
    }
    return false;
  }

  std::shared_ptr<const Plan> noted(const std::vector<int>& own) const {
    PlanRequest request = request_;
    request.stage_layers = best_.plan->stage_layers;
    request.notes.push_back(fmt::format(
        "stages of {} layers, by declared costs and memory: {} a rank at most, where {} would need "
        "{}",
        fmt::join(request.stage_layers, ", "), bytes_of(best_.peak()), fmt::join(own, ", "),
        bytes_of(own_peak_)));
    Problems none;
    return make_plan(request, none);
  }
  static std::string bytes_of(std::int64_t count) {
    return format_bytes(static_cast<double>(count));
  }

  const PlanRequest& request_;
  const std::int64_t memory_;
  const std::vector<int> stage_of_;
  const LayerCosts costs_;
  std::set<std::vector<int>> tried_;
  PlannedLayout best_;
  std::int64_t own_peak_ = 0;
  int left_ = most_tries;
};

}  // namespace

std::shared_ptr<const Plan> make_plan_within(const PlanRequest& request, std::int64_t memory,
                                             Problems& problems) {
  std::shared_ptr<const Plan> own = make_plan(request, problems);
  const bool open = own != nullptr && problems.empty() && request.stage_layers.empty() &&
                    own->stages() > 1 && !own->stage_layers.empty();
  return open ? WithinMemory(request, memory, std::move(own)).run() : own;
}

}  // namespace mw
