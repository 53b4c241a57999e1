// Holds a plan to the number of ranks that a script says it has, and finds the nearest that does.
#include "script/plan_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "meshwright/engine/interrupt.h"

namespace mw {
namespace {

// Ranks of the strategy's own axes: 1 where it borrows all that it has.
std::int64_t ways_of(const StrategyChoice& choice) {
  std::int64_t ways = 1;
  for (const AxisRequest& axis : choice.axes) ways *= axis.borrow.empty() ? axis.ways : 1;
  return ways;
}

bool splits_data(const StrategyChoice& choice) {
  return std::any_of(choice.axes.begin(), choice.axes.end(), [](const AxisRequest& axis) {
    return axis.role == Role::data && axis.borrow.empty();
  });
}

// The mix with the strategy at `place` in so many ways; empty if the planner does not take it.
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
  } catch (const Error& error) {  // a strategy's own, or an option's
    if (ends_all(error)) throw;
    return "";
  }
}

std::string nearest_mix(std::int64_t expected, const Plan& plan) {
  const std::vector<StrategyChoice>& all = plan.request.strategies;
  for (const bool data : {true, false}) {
    for (std::size_t place = 0; place < all.size(); ++place) {
      const std::int64_t own = ways_of(all[place]), others = plan.ranks() / own;
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
