// Keeps models and plans by what they are made of, and forgets the plans that nobody has asked for
// the longest.
#include "script/plan_memo.h"
#include "meshwright/engine/interrupt.h"

#include <fmt/format.h>
#include <algorithm>
#include <vector>

namespace mw {
namespace {

constexpr std::size_t most_models = 256;
constexpr std::size_t most_size = 400'000;  // slots and instructions, some 300 bytes each

std::size_t size_of(const Plan& plan) {
  std::size_t size = 1;
  for (const Program& program : plan.programs) {
    size += program.slots.size();
    for (const Segment& segment : program.segments) size += segment.code.size();
  }
  return size;
}

}  // namespace

PlanMemo::Models PlanMemo::model(const std::string& key, const std::function<Models()>& make) {
  const auto known = models_.find(key);
  if (known != models_.end()) return known->second;
  Models made = make();
  if (models_.size() == most_models) models_.clear();
  if (made != nullptr) models_.emplace(key, made);
  return made;
}

PlanMemo::Plans PlanMemo::plan(const std::string& key, const std::function<Plans()>& make) {
  if (const auto known = plans_.find(key); known != plans_.end()) {
    order_.splice(order_.begin(), order_, known->second.used);
    return known->second.plan;
  }
  Plans made = make();
  if (made == nullptr) return made;
  order_.push_front(key);
  const std::size_t size = size_of(*made);
  plans_.emplace(key, Kept{made, size, order_.begin()});
  size_ += size;
  while (size_ > most_size && order_.size() > 1) {
    const auto oldest = plans_.find(order_.back());
    size_ -= oldest->second.size;
    plans_.erase(oldest);
    order_.pop_back();
  }
  return made;
}

namespace {

// Ranks of the strategy's own axes: 1 where it borrows all that it has.
std::int64_t own_ranks(const StrategyChoice& choice) {
  std::int64_t ways = 1;
  for (const AxisRequest& axis : choice.axes) ways *= axis.borrow.empty() ? axis.ways : 1;
  return ways;
}

bool splits_data(const StrategyChoice& choice) {
  return std::any_of(choice.axes.begin(), choice.axes.end(), [](const AxisRequest& axis) {
    return axis.role == Role::data && axis.borrow.empty();
  });
}

// The mix with the strategy at `place` in `ways` ways; empty if the planner does not take it.
std::string mix_with(const Plan& plan, std::size_t place, std::int64_t ways) {
  PlanRequest request = plan.request;
  request.placements_only = true;
  request.recompute = {};
  try {
    StrategyChoice& choice = request.strategies[place];
    choice = choice.with_ways(ways);
    Problems problems;
    const auto made = make_plan(request, problems);
    return made ? made->mix() : "";
  } catch (const Error& error) {  // thrown by the strategy, or for its options
    if (ends_all(error)) throw;
    return "";
  }
}

std::string nearest_mix(std::int64_t expected, const Plan& plan) {
  const std::vector<StrategyChoice>& all = plan.request.strategies;
  for (const bool data : {true, false}) {
    for (std::size_t place = 0; place < all.size(); ++place) {
      const std::int64_t own = own_ranks(all[place]), others = plan.ranks() / own;
      if (splits_data(all[place]) != data || own == 1 || !all[place].with_ways ||
          expected % others != 0)
        continue;
      const std::string mix = mix_with(plan, place, expected / others);
      if (!mix.empty()) return mix;
    }
  }
  return "";
}

}  // namespace

void check_ranks(std::int64_t expected, const Plan& plan, Problems& problems) {
  if (expected == plan.ranks()) return;
  const std::string mix = nearest_mix(expected, plan);
  problems.add(Stage::plan, "ranks.differ", "ranks",
               fmt::format("ranks: {} are asked for, and the plan has {}: {}", expected,
                           plan.ranks(), plan.mesh.describe()),
               mix.empty() ? fmt::format("nearest: ranks = {}", plan.ranks())
                           : fmt::format("nearest: {}, or ranks = {}", mix, plan.ranks()));
}

}  // namespace mw
