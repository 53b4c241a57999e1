// Times orders of works for a search.
#include "search/orders.h"

#include <algorithm>
#include <array>

#include "meshwright/engine/interrupt.h"
#include "meshwright/replay.h"

namespace mw {
namespace {

// Beyond two rounds of the stages an order repeats itself: what fills and empties stays.
std::int64_t fewer(int ways, std::int64_t microbatches) {
  return microbatches > 2 * ways ? 2 * ways + microbatches % ways : microbatches;
}

// That nothing in it points outside; `check` says more and takes longer than all else here.
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

using Counts = std::array<int, 4>;  // works, by Work

// The works on the longest way through the order, where they take so long; none if it waits for
// ever.
std::optional<Counts> longest_way(const Schedule& schedule, const std::array<double, 4>& seconds) {
  struct Reached {
    double time = 0;
    Counts works{};
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
    const auto work = static_cast<std::size_t>(action.work);
    now.time += seconds[work];
    ++now.works[work];
    const std::size_t slot = filled_by(action, m);
    if (slot != no_slot) results[slot] = now;
  });
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (steps[s] < schedule.order[s].size()) return std::nullopt;
  }
  return std::max_element(stages.begin(), stages.end(),
                          [](const Reached& a, const Reached& b) { return a.time < b.time; })
      ->works;
}

Counts works_of(const std::vector<Action>& actions) {
  Counts works{};
  for (const Action& action : actions) ++works[static_cast<std::size_t>(action.work)];
  return works;
}

// Adds what is held unless something there is more in both, and drops what is less.
void add(std::vector<OrderTerms::Held>& most, const OrderTerms::Held& held) {
  const auto covers = [](const OrderTerms::Held& a, const OrderTerms::Held& b) {
    return a.kept >= b.kept && a.waiting >= b.waiting;
  };
  if (std::any_of(most.begin(), most.end(), [&](const auto& one) { return covers(one, held); }))
    return;
  std::erase_if(most, [&](const auto& one) { return covers(held, one); });
  most.push_back(held);
}

// `counts`: what each virtual stage counts for, of `whole`.
std::vector<OrderTerms::Held> held(const std::vector<Action>& actions,
                                   const std::vector<int>& counts, double whole) {
  std::vector<OrderTerms::Held> most;
  int kept = 0, waiting = 0;
  for (const Action& action : actions) {
    const int count = counts[static_cast<std::size_t>(action.vstage)];
    if (action.work == Work::forward) kept += count;
    if (action.work == Work::backward || action.work == Work::dgrad) kept -= count;
    if (action.work == Work::dgrad) waiting += count;
    if (action.work == Work::wgrad) waiting -= count;
    add(most, {kept / whole, waiting / whole});
  }
  return most;
}

// How often gradients of weights are those of another chunk than before, the first among them.
int turns_of(const std::vector<Action>& actions) {
  int turns = 0, before = -1;
  for (const Action& action : actions) {
    if (action.work != Work::backward && action.work != Work::wgrad) continue;
    if (action.vstage != before) ++turns;
    before = action.vstage;
  }
  return turns;
}

// Of each virtual stage.
std::vector<WorkTimes> times_of(const LayerTimes& times, std::int64_t layers, int vstages) {
  std::vector<WorkTimes> all;
  for (int v = 0; v < vstages; ++v) {
    const double own = layers_of(layers, vstages, v);
    const double last = v + 1 == vstages ? 1 : 0;
    const auto sum = [&](double WorkTimes::*work) {
      return own * (times.layer.*work) + last * (times.ends.*work);
    };
    all.push_back({sum(&WorkTimes::forward), sum(&WorkTimes::dgrad), sum(&WorkTimes::wgrad), 0});
  }
  return all;
}

}  // namespace

SearchOrders::Key SearchOrders::key(int stages_side, int ways, std::int64_t microbatches,
                                    int policy) const {
  return {stages_side, ways, fewer(ways, microbatches), parted_.contains(stages_side) ? policy : 0};
}

bool SearchOrders::knows(int stages_side, int ways, std::int64_t microbatches, int policy) const {
  return found_.contains(key(stages_side, ways, microbatches, policy));
}

const OrderTerms* SearchOrders::find(int stages_side, int ways, std::int64_t microbatches,
                                     int policy, const std::function<LayerTimes()>& times) {
  const auto known = found_.find(key(stages_side, ways, microbatches, policy));
  if (known != found_.end()) return known->second ? &*known->second : nullptr;
  throw_if_stopped();
  const auto terms = made(stages_side, ways, static_cast<int>(fewer(ways, microbatches)), times());
  if (terms && terms->parted > 0) parted_.insert(stages_side);
  const auto& kept = found_[key(stages_side, ways, microbatches, policy)] = terms;
  return kept ? &*kept : nullptr;
}

std::optional<OrderTerms> SearchOrders::made(int stages_side, int ways, int microbatches,
                                             const LayerTimes& times) {
  const StagesSide& side = space_.stages.at(stages_side);
  OrderTerms terms;
  terms.microbatches = microbatches;
  const std::int64_t layers = request_.base.plan->graph->layers;
  const double mean = static_cast<double>(layers) / ways;
  if (side.schedule.empty()) {  // the strategy has an order of its own: priced as 1F1B
    terms.ways = {{ways - 1.0, ways - 1.0, 0, 0}};
    terms.most = {{std::min(microbatches, ways) * layers_of(layers, ways, 0) / mean, 0}};
    terms.last = {{layers_of(layers, ways, ways - 1) / mean, 0}};
    terms.first = {static_cast<double>(std::min(microbatches, ways)), 0};
    Schedule plain;
    plain.microbatches = std::min(microbatches, ways + 1);
    for (int s = 0; s < ways; ++s) {
      plain.stage_of.push_back(s);
      std::vector<Action>& actions = plain.order.emplace_back();
      const int ahead = std::min(plain.microbatches, ways - s) - 1;
      for (int m = 0; m < plain.microbatches + ahead; ++m) {
        if (m < plain.microbatches) actions.push_back({s, Work::forward, m});
        if (m >= ahead) actions.push_back({s, Work::backward, m - ahead});
      }
    }
    terms.moments = moments_of(plain, layers);
    terms.assumed = true;
    return terms;
  }
  ScheduleRequest order;
  order.stages = ways;
  order.chunks = side.chunks;
  order.microbatches = microbatches;
  order.times = times_of(times, request_.base.plan->graph->layers, order.stages * order.chunks);
  try {
    const Schedule schedule = request_.schedule(side.schedule, order);
    if (!in_bounds(schedule, order)) return std::nullopt;
    if (!right_.contains(stages_side)) {
      Problems problems;
      check(schedule, order, problems);
      if (!problems.empty()) return std::nullopt;
      right_.insert(stages_side);
    }
    const double share = 1.0 / side.chunks;
    const Counts own = works_of(schedule.order.front());
    const auto count = [](const Counts& works, Work work) {
      return static_cast<double>(works[static_cast<std::size_t>(work)]);
    };
    const double whole = count(own, Work::backward), apart = count(own, Work::dgrad);
    terms.parted = apart / std::max(1.0, whole + apart);
    terms.assumed = terms.parted > 0;  // a plan's own times may lead to another
    // Where forward and dgrad wait for transfers and wgrad does not, another way may be longest.
    const double f = times.layer.forward, i = times.layer.dgrad, w = times.layer.wgrad;
    // By how much is not known where an order is timed, as that is done once for all mixes: 1.6, of
    // forward and dgrad with as much again of transfers as three fifths of their work, is a guess.
    for (const double waits : {1.0, 1.6}) {
      const auto way = longest_way(schedule, {waits * f, waits * i + w, waits * i, w});
      if (!way) return std::nullopt;
      const auto more = [&](Work work) { return share * (count(*way, work) - count(own, work)); };
      const OrderTerms::Way found = {more(Work::forward), more(Work::backward), more(Work::dgrad),
                                     more(Work::wgrad)};
      if (terms.ways.empty() || !(terms.ways.back() == found)) terms.ways.push_back(found);
      if (terms.parted == 0) break;
    }
    const int vstages = schedule.vstages(), last = schedule.stage_of.back();
    std::vector<int> of_layers, each(static_cast<std::size_t>(vstages), 1);
    for (int v = 0; v < vstages; ++v) of_layers.push_back(layers_of(layers, vstages, v));
    for (const auto& actions : schedule.order) {
      terms.turns = std::max<double>(terms.turns, turns_of(actions));
      for (const OrderTerms::Held& one : held(actions, of_layers, mean)) add(terms.most, one);
      for (const OrderTerms::Held& one : held(actions, each, side.chunks))
        terms.holds_all = terms.holds_all || one.kept > microbatches - 0.5 * share;
    }
    const auto& of_last = schedule.order.at(static_cast<std::size_t>(last));
    terms.last = held(of_last, of_layers, mean);
    const auto of_chunk = [&](std::size_t v, OrderTerms::Held& found) {
      std::vector<int> counts(static_cast<std::size_t>(vstages), 0);
      counts[v] = 1;
      const auto stage = static_cast<std::size_t>(schedule.stage_of[v]);
      for (const OrderTerms::Held& one : held(schedule.order.at(stage), counts, 1)) {
        found.kept = std::max(found.kept, one.kept);
        found.waiting = std::max(found.waiting, one.waiting);
      }
    };
    of_chunk(0, terms.first);
    terms.moments = moments_of(schedule, layers);
    terms.folded = ways > 1 && last == schedule.stage_of.front();
    return terms;
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {  // this many microbatches or chunks are none of its
    return std::nullopt;
  }
}

}  // namespace mw
