// Lays each stage's timeline from a schedule: actions, or groups of them, with the receives that
// begin before them and the waits for sends, after which a tensor may be released.
#include <algorithm>
#include <map>
#include <span>
#include <stdexcept>

#include "meshwright/engine/interrupt.h"
#include "plan/build.h"

namespace mw {
namespace {

SegmentKind kind_of(Work work) {
  switch (work) {
    case Work::forward:
      return SegmentKind::forward;
    case Work::backward:
      return SegmentKind::backward;
    case Work::dgrad:
      return SegmentKind::dgrad;
    case Work::wgrad:
      return SegmentKind::wgrad;
  }
  return SegmentKind::forward;
}

// How many actions of each stage have happened before one: a vector clock.
using Clock = std::vector<int>;

class Timelines {
 public:
  Timelines(std::vector<Program>& programs, const Partition& partition, const Schedule& schedule)
      : programs_(programs),
        partition_(partition),
        schedule_(schedule),
        done_(programs.size(), 0),
        clocks_(programs.size(), Clock(programs.size(), 0)),
        unsent_(programs.size()) {
    for (std::size_t s = 0; s < programs.size(); ++s) {
      for (std::size_t k = 0; k < schedule.order[s].size(); ++k) {
        const Action& a = schedule.order[s][k];
        if (a.work != Work::wgrad) place_[key(a.vstage, a.work != Work::forward, a.microbatch)] = k;
      }
      std::vector<int>& starts = group_of_.emplace_back(schedule.order[s].size());
      for (std::size_t k = 0; k < starts.size();) {
        const std::size_t end = schedule.group_end(static_cast<int>(s), k);
        std::fill(starts.begin() + k, starts.begin() + end, static_cast<int>(k));
        k = end;
      }
    }
  }

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < programs_.size(); ++s) {
        throw_if_stopped();
        while (done_[s] < static_cast<int>(schedule_.order[s].size()) && ready(s)) {
          step(s);
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < programs_.size(); ++s) {
      if (done_[s] < static_cast<int>(schedule_.order[s].size())) {
        throw std::logic_error("stage " + std::to_string(s) + " waits for ever at " +
                               to_string(schedule_.order[s][done_[s]]));
      }
      for (const Unsent& u : unsent_[s]) add(s, SegmentKind::sent, u.action, u.gradient);
    }
  }

 private:
  // A send that a stage has begun and not awaited, and the groups of other stages that receive it.
  struct Unsent {
    Action action;
    bool gradient;
    // The stage of each receiving group, and where in the stage's order the group begins.
    std::vector<std::pair<int, int>> receivers;
  };

  static std::int64_t key(int vstage, bool gradient, int microbatch) {
    return (static_cast<std::int64_t>(vstage) * 2 + (gradient ? 1 : 0)) * (std::int64_t{1} << 32) +
           microbatch;
  }

  // Visits the works of other stages that an action waits for (`before`), or that wait for it.
  template <class Visit>
  void neighbours(const Action& a, bool before, const Visit& visit) const {
    if (a.work == Work::wgrad) return;
    const bool gradient = a.work != Work::forward;
    for (const Crossing& c : partition_.crossings) {
      const bool upwards = gradient == before;  // looks at the later end of the crossing
      if ((upwards ? c.from : c.to) != a.vstage) continue;
      const int other = upwards ? c.to : c.from;
      if (partition_.stage_of[other] != partition_.stage_of[a.vstage]) visit(other, gradient);
    }
  }

  // The works that a stage does next: one, or those of a group.
  std::span<const Action> group(std::size_t s, std::size_t first) const {
    const std::size_t end = schedule_.group_end(static_cast<int>(s), first);
    return std::span(schedule_.order[s]).subspan(first, end - first);
  }

  bool ready(std::size_t s) const {
    bool all = true;
    for (const Action& a : group(s, done_[s])) {
      neighbours(a, true, [&](int other, bool gradient) {
        all = all &&
              done_[partition_.stage_of[other]] > place_.at(key(other, gradient, a.microbatch));
      });
    }
    return all;
  }

  // A group is one step: all that its works receive is there before the first of them, and all are
  // done with the last.
  void step(std::size_t s) {
    const auto first = static_cast<std::size_t>(done_[s]);
    const std::span<const Action> works = group(s, first);
    await_sends(s);
    if (first == 0) post(s, works);
    const std::size_t next = first + works.size();
    if (next < schedule_.order[s].size()) post(s, group(s, next));
    for (const Action& a : works) {
      if (a.work != Work::wgrad) add(s, SegmentKind::receive, a, a.work != Work::forward);
    }
    for (const Action& a : works) {
      SegmentRun run{programs_[s].segment(kind_of(a.work), a.vstage), a.microbatch, {}};
      run.joined = &a != &works.back();
      programs_[s].timeline.push_back(std::move(run));
      neighbours(a, true, [&](int other, bool gradient) {
        const auto found = snapshots_.find(key(other, gradient, a.microbatch));
        if (found == snapshots_.end()) return;
        for (std::size_t t = 0; t < programs_.size(); ++t) {
          clocks_[s][t] = std::max(clocks_[s][t], found->second[t]);
        }
      });
    }
    clocks_[s][s] = done_[s] = static_cast<int>(next);
    for (const Action& a : works) note_send(s, a);
  }

  void await_sends(std::size_t s) {
    std::erase_if(unsent_[s], [&](const Unsent& u) {
      const bool begun = std::all_of(u.receivers.begin(), u.receivers.end(), [&](auto& r) {
        return clocks_[s][r.first] >= std::max(1, r.second);
      });
      if (begun) add(s, SegmentKind::sent, u.action, u.gradient);
      return begun;
    });
  }

  void note_send(std::size_t s, const Action& a) {
    Unsent u{a, a.work != Work::forward, {}};
    neighbours(a, false, [&](int other, bool gradient) {
      const int stage = partition_.stage_of[other];
      const std::int64_t place = place_.at(key(other, gradient, a.microbatch));
      u.receivers.emplace_back(stage, group_of_[stage][place]);
    });
    if (u.receivers.empty()) return;
    snapshots_[key(a.vstage, u.gradient, a.microbatch)] = clocks_[s];
    unsent_[s].push_back(std::move(u));
  }

  void post(std::size_t s, std::span<const Action> works) {
    for (const Action& a : works) {
      if (a.work != Work::wgrad) add(s, SegmentKind::post, a, a.work != Work::forward);
    }
  }

  void add(std::size_t s, SegmentKind kind, const Action& a, bool gradient) {
    const int segment = programs_[s].segment(kind, a.vstage, gradient);
    if (segment >= 0) programs_[s].timeline.push_back({segment, a.microbatch});
  }

  std::vector<Program>& programs_;
  const Partition& partition_;
  const Schedule& schedule_;
  std::vector<int> done_;
  std::vector<Clock> clocks_;
  std::vector<std::vector<Unsent>> unsent_;
  // by key(): index of the action in its stage's order
  std::map<std::int64_t, std::int64_t> place_;
  // by stage and action: index of its group's first action
  std::vector<std::vector<int>> group_of_;
  std::map<std::int64_t, Clock> snapshots_;  // by key(): the sender's clock when the work was done
};

}  // namespace

void drop_unused(Program& program) {
  std::vector<int> becomes(program.segments.size(), -1);
  for (const SegmentRun& run : program.timeline) becomes[run.segment] = 0;
  std::vector<Segment> kept;
  for (std::size_t s = 0; s < becomes.size(); ++s) {
    if (becomes[s] < 0) continue;
    becomes[s] = static_cast<int>(kept.size());
    kept.push_back(std::move(program.segments[s]));
  }
  program.segments = std::move(kept);
  for (SegmentRun& run : program.timeline) run.segment = becomes[run.segment];
}

void add_timelines(std::vector<Program>& programs, const Partition& partition,
                   const Schedule& schedule) {
  Timelines(programs, partition, schedule).run();
}

}  // namespace mw
