// Makes pipeline orders for a search, and counts what waits and what is held in them.
#include "search/orders.h"

#include <algorithm>
#include <cstddef>

#include "meshwright/replay.h"
#include "meshwright/stage_balance.h"
#include "predict/variants.h"

namespace mw {
namespace {

// A smaller number of microbatches to make an order with: beyond two rounds of the stages an order
// repeats itself, and what fills and empties it stays.
std::int64_t fewer(int ways, std::int64_t microbatches) {
  return microbatches > 2 * ways ? 2 * ways + microbatches % ways : microbatches;
}

// Whether no action of the schedule points outside the order. `check` says more, and takes longer
// than all else here.
bool in_bounds(const Schedule& schedule, const ScheduleRequest& order) {
  const int vstages = schedule.vstages();
  if (schedule.microbatches != order.microbatches || vstages != order.stages * order.chunks ||
      schedule.order.size() != static_cast<std::size_t>(order.stages))
    return false;
  return std::all_of(schedule.order.begin(), schedule.order.end(), [&](const auto& actions) {
    return std::all_of(actions.begin(), actions.end(), [&](const Action& action) {
      return action.vstage >= 0 && action.vstage < vstages && action.microbatch >= 0 &&
             action.microbatch < order.microbatches;
    });
  });
}

double& count(WorkCounts& works, Work work) {
  return works[static_cast<std::size_t>(work)];
}

// The works on the longest way of dependencies through the order, where works take `seconds`;
// nothing if the order waits for ever.
std::optional<WorkCounts> longest_way(const Schedule& schedule, const WorkCounts& seconds) {
  struct Reached {
    double time = 0;
    WorkCounts works{};
  };
  const int m = schedule.microbatches, vstages = schedule.vstages();
  std::vector<Reached> stages(schedule.order.size());
  std::vector<Reached> results(2 * static_cast<std::size_t>(vstages) * static_cast<std::size_t>(m));
  const auto steps = replay(schedule, [&](int stage, std::size_t, const Action& action) {
    Reached& now = stages[static_cast<std::size_t>(stage)];
    const Need need = needs_of(action, vstages).other;
    if (need.vstage >= 0) {
      const Reached& there = results[slot_of(need.vstage, action.microbatch, need.result, m)];
      if (there.time > now.time) now = there;
    }
    now.time += seconds[static_cast<std::size_t>(action.work)];
    ++count(now.works, action.work);
    const std::size_t slot = filled_by(action, m);
    if (slot != no_slot) results[slot] = now;
  });
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (steps[s] < schedule.order[s].size()) return std::nullopt;
  }
  return std::ranges::max_element(stages, {}, &Reached::time)->works;
}

// Adds to `most` what a stage holds after each of its works. An entry that another entry equals or
// exceeds in both numbers is left out. `shares`: layers of each virtual stage over those of an
// average stage.
void add_held(const std::vector<Action>& actions, const std::vector<double>& shares,
              std::vector<OrderTerms::Held>& most) {
  const auto covers = [](const OrderTerms::Held& a, const OrderTerms::Held& b) {
    return a.kept >= b.kept && a.waiting >= b.waiting;
  };
  OrderTerms::Held held;
  for (const Action& action : actions) {
    const double share = shares[static_cast<std::size_t>(action.vstage)];
    if (action.work == Work::forward) held.kept += share;
    if (action.work == Work::backward || action.work == Work::dgrad) held.kept -= share;
    if (action.work == Work::dgrad) held.waiting += share;
    if (action.work == Work::wgrad) held.waiting -= share;
    if (std::ranges::any_of(most, [&](const auto& one) { return covers(one, held); })) continue;
    std::erase_if(most, [&](const auto& one) { return covers(held, one); });
    most.push_back(held);
  }
}

// How often a stage turns to the weight gradients of another chunk, the first turn among them.
int turns_of(const std::vector<Action>& actions) {
  int turns = 0, before = -1;
  for (const Action& action : actions) {
    if (action.work != Work::backward && action.work != Work::wgrad) continue;
    turns += action.vstage != before ? 1 : 0;
    before = action.vstage;
  }
  return turns;
}

// The times of the works of each virtual stage.
std::vector<WorkTimes> times_of(const LayerTimes& times, int layers, int vstages) {
  std::vector<WorkTimes> all;
  for (const double own : even_layers(layers, vstages)) {
    const double last = static_cast<int>(all.size()) + 1 == vstages ? 1 : 0;
    const auto sum = [&](double WorkTimes::*work) {
      return own * (times.layer.*work) + last * (times.ends.*work);
    };
    all.push_back({sum(&WorkTimes::forward), sum(&WorkTimes::dgrad), sum(&WorkTimes::wgrad), 0});
  }
  return all;
}

}  // namespace

const OrderTerms* SearchOrders::find(int stages_side, int ways, std::int64_t microbatches,
                                     int policy, const LayerTimes& times) {
  const std::int64_t few = fewer(ways, microbatches);
  const auto key = [&] {
    return std::tuple(stages_side, ways, few, parted_.contains(stages_side) ? policy : 0);
  };
  auto found = found_.find(key());
  if (found == found_.end()) {
    throw_if_stopped();
    const auto terms = made(stages_side, ways, static_cast<int>(few), times);
    if (terms && terms->parted) parted_.insert(stages_side);
    found = found_.emplace(key(), terms).first;
  }
  return found->second ? &*found->second : nullptr;
}

std::optional<OrderTerms> SearchOrders::made(int stages_side, int ways, int microbatches,
                                             const LayerTimes& times) {
  const StagesSide& side = space_.stages.at(stages_side);
  if (side.schedule.empty()) {  // the strategy has an order of its own: priced as 1F1B
    OrderTerms terms;
    terms.ways = {{ways - 1.0, ways - 1.0, 0, 0}};
    terms.microbatches = microbatches;
    terms.most = {{static_cast<double>(std::min(microbatches, ways)), 0}};
    terms.last = terms.loss = {{1, 0}};
    return terms;
  }
  ScheduleRequest order;
  order.stages = ways;
  order.chunks = side.chunks;
  order.microbatches = microbatches;
  order.times = times_of(times, request_.base->graph->layers, ways * side.chunks);
  // A schedule may not take so many microbatches or chunks.
  return unless_refused([&]() -> std::optional<OrderTerms> {
    const Schedule schedule = request_.schedule(side.schedule, order);
    if (!in_bounds(schedule, order)) return std::nullopt;
    if (!right_.contains(stages_side)) {
      Problems problems;
      check(schedule, order, problems);
      if (!problems.empty()) return std::nullopt;
      right_.insert(stages_side);
    }
    return read(schedule, times.layer);
  });
}

std::optional<OrderTerms> SearchOrders::read(const Schedule& schedule,
                                             const WorkTimes& layer) const {
  OrderTerms terms;
  terms.microbatches = schedule.microbatches;
  const int vstages = schedule.vstages();
  const auto stages = static_cast<double>(schedule.order.size());
  WorkCounts own{};
  for (const Action& action : schedule.order.front()) ++count(own, action.work);
  terms.parted = count(own, Work::dgrad) > 0;
  // Where forward and dgrad wait for transfers and wgrad does not, another way may be longest. By
  // how much is not known here, as an order is made once for all mixes: 1.6 is a guess.
  for (const double waits : {1.0, 1.6}) {
    auto way = longest_way(schedule, {waits * layer.forward, waits * layer.dgrad + layer.wgrad,
                                      waits * layer.dgrad, layer.wgrad});
    if (!way) return std::nullopt;
    for (std::size_t k = 0; k < own.size(); ++k)
      (*way)[k] = ((*way)[k] - own[k]) * stages / vstages;
    terms.ways.push_back(*way);
    if (!terms.parted) break;
  }
  const int layers = request_.base->graph->layers;
  std::vector<double> shares;
  for (const int one : even_layers(layers, vstages)) shares.push_back(one * stages / layers);
  for (const auto& actions : schedule.order) {
    terms.turns = std::max<double>(terms.turns, turns_of(actions));
    add_held(actions, shares, terms.most);
  }
  terms.holds_all = std::ranges::any_of(terms.most, [&](const OrderTerms::Held& one) {
    return one.kept > schedule.microbatches - 0.5 * stages / vstages;
  });
  const int last = schedule.stage_of.back();
  const auto& of_last = schedule.order.at(static_cast<std::size_t>(last));
  add_held(of_last, shares, terms.last);
  shares.assign(shares.size(), 0);
  shares.back() = 1;
  add_held(of_last, shares, terms.loss);
  terms.folded = stages > 1 && last == schedule.stage_of.front();
  return terms;
}

}  // namespace mw
