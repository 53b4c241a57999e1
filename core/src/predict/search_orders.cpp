// Times orders of works for a search.
#include "predict/search_orders.h"

#include <algorithm>

#include "base/interrupt.h"

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

// Microbatches of a stage between I and W, at most; a chunk counts as its share.
double most_waiting(const Schedule& schedule, double share) {
  double most = 0;
  for (const auto& actions : schedule.order) {
    double waiting = 0;
    for (const Action& action : actions) {
      if (action.work == Work::dgrad) most = std::max(most, waiting += share);
      if (action.work == Work::wgrad) waiting -= share;
    }
  }
  return most;
}

}  // namespace

bool SearchOrders::knows(int stages_side, int ways, std::int64_t microbatches) const {
  return found_.contains({stages_side, ways, fewer(ways, microbatches)});
}

const OrderTerms* SearchOrders::find(int stages_side, int ways, std::int64_t microbatches) {
  const std::int64_t few = fewer(ways, microbatches);
  const auto known = found_.find({stages_side, ways, few});
  if (known != found_.end()) return known->second ? &*known->second : nullptr;
  throw_if_stopped();
  const auto terms = made(stages_side, ways, static_cast<int>(few));
  const auto& kept = found_[{stages_side, ways, few}] = terms;
  return kept ? &*kept : nullptr;
}

std::optional<OrderTerms> SearchOrders::made(int stages_side, int ways, int microbatches) {
  const StagesSide& side = space_.stages.at(stages_side);
  if (side.schedule.empty())  // the strategy has an order of its own
    return OrderTerms{ways - 1.0, static_cast<double>(std::min(microbatches, ways)), 1};
  ScheduleRequest order;
  order.stages = ways;
  order.chunks = side.chunks;
  order.microbatches = microbatches;
  const double share = 1.0 / side.chunks;
  order.times = {{share, share, share, 0}};
  order.bytes = {{share, share}};
  try {
    const Schedule schedule = request_.schedule(side.schedule, order);
    if (!in_bounds(schedule, order)) return std::nullopt;
    if (!right_.contains(stages_side)) {
      Problems problems;
      check(schedule, order, problems);
      if (!problems.empty()) return std::nullopt;
      right_.insert(stages_side);
    }
    const ScheduleTimeline timeline = simulate(schedule, order);
    OrderTerms terms;
    terms.bubble = timeline.makespan / 3 - static_cast<double>(microbatches);
    terms.first = *std::max_element(timeline.bytes_peak.begin(), timeline.bytes_peak.end());
    terms.last = timeline.bytes_peak.at(schedule.stage_of.back());
    terms.waiting = most_waiting(schedule, share);
    terms.microbatches = microbatches;
    terms.holds_all = terms.first > microbatches - 0.5 * share;
    return terms;
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {  // this many microbatches or chunks are none of its
    return std::nullopt;
  }
}

}  // namespace mw
