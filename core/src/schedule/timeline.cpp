// Times a schedule by itself, from given times of its works and transfers: when each action
// runs, how long each stage waits.
#include <algorithm>

#include "meshwright/replay.h"

namespace mw {
namespace {

double seconds_of(Work work, const WorkTimes& times) {
  switch (work) {
    case Work::forward:
      return times.forward;
    case Work::backward:
      return times.dgrad + times.wgrad;
    case Work::dgrad:
      return times.dgrad;
    case Work::wgrad:
      break;
  }
  return times.wgrad;
}

void add_memory(const Schedule& schedule, const ScheduleRequest& request,
                ScheduleTimeline& timeline) {
  for (const auto& actions : schedule.order) {
    double bytes = 0, most = 0;
    int held = 0, most_held = 0;
    for (const Action& action : actions) {
      bytes += bytes_added(action, request.bytes_of(action.vstage));
      most = std::max(most, bytes);
      if (action.work == Work::forward) most_held = std::max(most_held, ++held);
      if (action.work == Work::backward || action.work == Work::wgrad) --held;
    }
    timeline.bytes_peak.push_back(most);
    timeline.microbatches_peak.push_back(most_held);
  }
}

void add_sums(ScheduleTimeline& timeline) {
  double first = 0, last = 0, busy = 0;
  bool any = false;
  for (const auto& works : timeline.stages) {
    double seconds = 0;
    for (const TimedAction& work : works) seconds += work.end - work.start;
    timeline.busy.push_back(seconds);
    busy += seconds;
    if (works.empty()) continue;
    first = any ? std::min(first, works.front().start) : works.front().start;
    last = any ? std::max(last, works.back().end) : works.back().end;
    any = true;
  }
  timeline.makespan = last - first;
  const double span = timeline.makespan;
  for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
    const auto& works = timeline.stages[s];
    const double inside = works.empty() ? 0 : works.back().end - works.front().start;
    timeline.inner_idle.push_back(span > 0 ? std::max(0.0, inside - timeline.busy[s]) / span : 0);
  }
  if (span > 0) timeline.bubble = 1 - busy / (static_cast<double>(timeline.stages.size()) * span);
}

}  // namespace

ScheduleTimeline simulate(const Schedule& schedule, const ScheduleRequest& request) {
  const int m = schedule.microbatches, vstages = schedule.vstages();
  ScheduleTimeline timeline;
  timeline.stages.resize(schedule.order.size());
  for (std::size_t s = 0; s < schedule.order.size(); ++s)
    timeline.stages[s].reserve(schedule.order[s].size());

  std::vector<int> chunk;
  for (int v = 0; v < vstages; ++v) chunk.push_back(schedule.chunk_of(v));
  std::vector<double> free(schedule.order.size(), 0);
  std::vector<double> ends(2 * static_cast<std::size_t>(vstages) * static_cast<std::size_t>(m), 0);

  const auto reached = replay(schedule, [&](int stage, std::size_t, const Action& action) {
    double& now = free[static_cast<std::size_t>(stage)];
    const Need need = needs_of(action, vstages).other;
    if (need.vstage >= 0) {
      double ready = ends[slot_of(need.vstage, action.microbatch, need.result, m)];
      if (schedule.stage_of[static_cast<std::size_t>(need.vstage)] != stage)
        ready += request.times_of(need.vstage).send;
      now = std::max(now, ready);
    }
    TimedAction timed;
    timed.rank = timed.stage = stage;
    timed.chunk = chunk[static_cast<std::size_t>(action.vstage)];
    timed.name.assign(1, letter_of(action.work));
    timed.microbatch = action.microbatch;
    timed.vstage = action.vstage;
    timed.start = now;
    now += seconds_of(action.work, request.times_of(action.vstage));
    timed.end = now;
    timeline.stages[static_cast<std::size_t>(stage)].push_back(std::move(timed));
    const std::size_t slot = filled_by(action, m);
    if (slot != no_slot) ends[slot] = now;
  });
  for (std::size_t s = 0; s < reached.size(); ++s) {
    if (reached[s] < schedule.order[s].size()) {
      throw Error(Stage::plan, "schedule.deadlock", "",
                  "a schedule that waits for ever cannot be simulated",
                  "check it first: the check names the cycle");
    }
  }
  add_sums(timeline);
  add_memory(schedule, request, timeline);
  return timeline;
}

}  // namespace mw
