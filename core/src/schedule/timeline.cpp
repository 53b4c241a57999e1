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

// The seconds of the actions from `first` to before `end`: a group, or one by itself.
double seconds_of_group(const Schedule& schedule, const ScheduleRequest& request, int stage,
                        std::size_t first, std::size_t end) {
  const auto& actions = schedule.order[static_cast<std::size_t>(stage)];
  double seconds = 0;
  for (std::size_t k = first; k < end; ++k)
    seconds += seconds_of(actions[k].work, request.times_of(actions[k].vstage));
  return end > first + 1 ? seconds * request.joint : seconds;
}

void add_memory(const Schedule& schedule, const ScheduleRequest& request,
                ScheduleTimeline& timeline) {
  const auto most = [&](int stage, const auto& added) {
    double highest = 0;
    for_each_level(schedule, stage, added,
                   [&](std::size_t, double level) { highest = std::max(highest, level); });
    return highest;
  };
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    timeline.bytes_peak.push_back(most(stage, bytes_by(request)));
    timeline.microbatches_peak.push_back(most(stage, [](const Action& action) {
      return bytes_added(action, {1, 1});
    }));
  }
}

void add_sums(ScheduleTimeline& timeline) {
  double first = 0, last = 0, busy = 0;
  bool any = false;
  for (const auto& works : timeline.stages) {
    double seconds = 0;
    for (const TimedAction& work : works)
      if (work.lane == 0) seconds += work.end - work.start;
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

  std::vector<std::size_t> group(schedule.order.size(), 0);  // by stage: end of its present group
  const auto ready = [&](int stage, const Action& action) {
    const Need need = needs_of(action, vstages).other;
    if (need.vstage < 0) return 0.0;
    const double end = ends[slot_of(need.vstage, action.microbatch, need.result, m)];
    const bool here = schedule.stage_of[static_cast<std::size_t>(need.vstage)] == stage;
    return end + (here ? 0 : request.times_of(need.vstage).send);
  };
  const auto reached = replay(schedule, [&](int stage, std::size_t step, const Action& action) {
    const auto s = static_cast<std::size_t>(stage);
    auto& works = timeline.stages[s];
    TimedAction timed;
    if (step == group[s]) {  // an action by itself, or the first of a group
      group[s] = schedule.group_end(stage, step);
      timed.start = free[s];
      for (std::size_t k = step; k < group[s]; ++k)
        timed.start = std::max(timed.start, ready(stage, schedule.order[s][k]));
      timed.end = timed.start + seconds_of_group(schedule, request, stage, step, group[s]);
      timed.lanes = static_cast<int>(group[s] - step);
      free[s] = timed.end;
    } else {
      timed = works.back();
      ++timed.lane;
    }
    timed.rank = timed.stage = stage;
    timed.chunk = chunk[static_cast<std::size_t>(action.vstage)];
    timed.name.assign(1, letter_of(action.work));
    timed.microbatch = action.microbatch;
    timed.vstage = action.vstage;
    const std::size_t slot = filled_by(action, m);
    if (slot != no_slot) ends[slot] = timed.end;
    works.push_back(std::move(timed));
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
