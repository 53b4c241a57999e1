// Puts the weight gradients (W) of zero-bubble schedules into the gaps that F and I leave,
// within the memory limit, and keeps the best of several rules.
#include "zero_bubble.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "meshwright/replay.h"

namespace pp {
namespace {

constexpr GapRule rules[] = {{0}, {1}, {0.5}, {0.25}, {0.75}, {0, true}};

bool clearly_less(double a, double b) {
  return a < b - 1e-9 * std::max(1e-30, std::max(a, b));
}

// The state of one stage while W's are put into its order.
struct Filling {
  std::vector<Action> order;
  std::deque<Action> put_off;  // W's that may run: their I is done
  double now = 0, first = -1, busy = 0, bytes = 0;

  void run(const Action& action, double start, double seconds, double added) {
    if (first < 0) first = start;
    now = start + seconds;
    busy += seconds;
    bytes += added;
    order.push_back(action);
  }
};

class Placer {
 public:
  Placer(const std::vector<int>& stage_of, const ScheduleRequest& request, double limit,
         const GapRule& rule)
      : stage_of_(stage_of), request_(request), limit_(limit), rule_(rule) {}

  Placed run(const Skeleton& skeleton) {
    const int m = request_.microbatches, vstages = static_cast<int>(stage_of_.size());
    Schedule view;
    view.microbatches = m;
    view.stage_of = stage_of_;
    view.order = skeleton;
    stages_.resize(skeleton.size());
    ends_.assign(2 * stage_of_.size() * static_cast<std::size_t>(m), 0);
    for (std::size_t s = 0; s < skeleton.size(); ++s) {
      stages_[s].order.reserve(skeleton[s].size() * 3 / 2);
    }
    const auto reached = replay(view, [&](int stage, std::size_t, const Action& action) {
      if (!possible_) return;
      Filling& filling = stages_[static_cast<std::size_t>(stage)];
      const Need need = needs_of(action, vstages).other;
      double ready = 0;
      if (need.vstage >= 0) {
        ready = ends_[slot_of(need.vstage, action.microbatch, need.result, m)];
        if (stage_of_[static_cast<std::size_t>(need.vstage)] != stage)
          ready += request_.times_of(need.vstage).send;
      }
      put(filling, action, ready);
    });
    // a stage that did not reach its end: the skeleton waits for itself
    for (std::size_t s = 0; s < skeleton.size(); ++s) {
      possible_ = possible_ && reached[s] == skeleton[s].size();
    }
    return possible_ ? finish() : Placed{};
  }

 private:
  void wgrad(Filling& filling) {
    const Action action = filling.put_off.front();
    filling.put_off.pop_front();
    filling.run(action, filling.now, request_.times_of(action.vstage).wgrad,
                -request_.bytes_of(action.vstage).dgrad);
  }

  void put(Filling& filling, const Action& action, double ready) {
    const double added = bytes_added(action, request_.bytes_of(action.vstage));
    while (limit_ > 0 && added > 0 && above(filling.bytes + added, limit_)) {
      if (filling.put_off.empty()) {
        possible_ = false;
        return;
      }
      wgrad(filling);
    }
    while (!filling.put_off.empty() && filling.now < ready) {
      const double seconds = request_.times_of(filling.put_off.front().vstage).wgrad;
      const double wait = ready - filling.now;
      if (clearly_less(wait, seconds * (1 - rule_.overrun))) break;
      // A wait as short as this is a rounding error.
      if (wait < 1e-9 * ready) break;
      wgrad(filling);
    }
    const WorkTimes& times = request_.times_of(action.vstage);
    filling.run(action, std::max(filling.now, ready),
                action.work == Work::forward ? times.forward : times.dgrad, added);
    ends_[filled_by(action, request_.microbatches)] = filling.now;
    if (action.work == Work::forward) return;
    filling.put_off.push_back({action.vstage, Work::wgrad, action.microbatch});
    if (rule_.at_once) wgrad(filling);
  }

  Placed finish() {
    Placed placed;
    double first = -1;
    for (Filling& filling : stages_) {
      while (!filling.put_off.empty()) wgrad(filling);
      first = first < 0 ? filling.first : std::min(first, filling.first);
      placed.makespan = std::max(placed.makespan, filling.now);
      placed.idle += std::max(0.0, filling.now - filling.first - filling.busy);
      placed.order.push_back(std::move(filling.order));
    }
    placed.makespan -= std::max(0.0, first);
    return placed;
  }

  const std::vector<int>& stage_of_;
  const ScheduleRequest& request_;
  double limit_;
  GapRule rule_;
  std::vector<Filling> stages_;
  std::vector<double> ends_;
  bool possible_ = true;
};

// A lower bound of the makespan: each stage starts after its first F can have come, and then does
// all its work.
double bound_of(const std::vector<int>& stage_of, const ScheduleRequest& request) {
  std::vector<double> start(static_cast<std::size_t>(request.stages), -1), busy(start.size(), 0);
  double come = 0, bound = 0;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    const auto s = static_cast<std::size_t>(stage_of[v]);
    const WorkTimes& times = request.times_of(static_cast<int>(v));
    if (start[s] < 0) start[s] = come;
    busy[s] += (times.forward + times.dgrad + times.wgrad) * request.microbatches;
    come += times.forward;
    if (v + 1 < stage_of.size() && stage_of[v + 1] != stage_of[v]) come += times.send;
  }
  for (std::size_t s = 0; s < start.size(); ++s) bound = std::max(bound, start[s] + busy[s]);
  return bound;
}

}  // namespace

Placed place_wgrads(const Skeleton& skeleton, const std::vector<int>& stage_of,
                    const ScheduleRequest& request, double limit, const GapRule& rule) {
  return Placer(stage_of, request, limit, rule).run(skeleton);
}

double bytes_of_one(const std::vector<int>& stage_of, int stage, const ScheduleRequest& request) {
  double bytes = 0;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    if (stage_of[v] != stage) continue;
    const WorkBytes& of = request.bytes_of(static_cast<int>(v));
    bytes += std::max(of.forward, of.dgrad);
  }
  return bytes;
}

double most_bytes_of_one(const std::vector<int>& stage_of, const ScheduleRequest& request) {
  double most = 0;
  for (int s = 0; s < request.stages; ++s)
    most = std::max(most, bytes_of_one(stage_of, s, request));
  return most;
}

ZeroBubbleSearch::ZeroBubbleSearch(const Scheduler& scheduler, const ScheduleRequest& request,
                                   double limit)
    : request_(request), schedule_(empty_schedule(scheduler, request)), limit_(limit) {
  bound_ = bound_of(schedule_.stage_of, request);
  for (int s = 0; s < request.stages; ++s) {
    const double one = bytes_of_one(schedule_.stage_of, s, request);
    if (limit_ <= 0 || !above(one, limit_)) continue;
    throw Error(
        Stage::plan, "schedule.memory", "memory",
        fmt::format("schedule {}: one microbatch takes {} of stage {}'s activation memory, the "
                    "limit is {}",
                    schedule_.name, number_text(one), s, number_text(limit_)),
        fmt::format("raise the limit to {} at least, or make microbatches smaller",
                    number_text(most_bytes_of_one(schedule_.stage_of, request))));
  }
}

bool ZeroBubbleSearch::perfect() const {
  return !best_.order.empty() && !clearly_less(bound_, best_.makespan) &&
         best_.idle <= 1e-9 * best_.makespan;
}

void ZeroBubbleSearch::add(const Skeleton& skeleton) {
  for (const GapRule& rule : rules) {
    if (perfect()) return;
    Placed placed = place_wgrads(skeleton, schedule_.stage_of, request_, limit_, rule);
    if (placed.order.empty()) continue;
    const bool sooner = best_.order.empty() || clearly_less(placed.makespan, best_.makespan);
    const bool later = !best_.order.empty() && clearly_less(best_.makespan, placed.makespan);
    if (sooner || (!later && clearly_less(placed.idle, best_.idle))) best_ = std::move(placed);
  }
}

Schedule ZeroBubbleSearch::best() const {
  if (best_.order.empty()) {
    throw Error(Stage::plan, "schedule.memory", "memory",
                fmt::format("schedule {} finds no order within the memory limit of {}",
                            schedule_.name, number_text(limit_)),
                "raise the limit");
  }
  Schedule schedule = schedule_;
  schedule.order = best_.order;
  return schedule;
}

}  // namespace pp
