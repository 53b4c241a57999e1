// Interleaves works that share a stage by predicted seconds: plays the lanes on a clock, on which
// transfers over one axis follow each other and transfers over different axes go at once.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "weaves.h"

namespace pp {
namespace {

using mw::Code;
using mw::Instruction;

// What the clock needs to know of an instruction of a lane.
struct HideStep {
  double seconds = 0;
  // The transfer that it begins or awaits: the step that begins it; -1: none.
  int begins = -1, awaits = -1;
  int link = -1;          // link of the transfer that it begins
  double left = 0;        // seconds of this lane from here on, with transfers
  double until_next = 0;  // seconds from here until the lane begins its next transfer
};

std::vector<HideStep> hide_steps(const mw::WeaveRequest& request, const mw::Segment& segment,
                                 const std::vector<std::string>& axes,
                                 std::map<std::string, int>& links) {
  std::vector<HideStep> steps;
  std::map<int, int> pendings;
  for (const Instruction& i : segment.code) {
    HideStep step;
    step.seconds = request.seconds(i);
    const bool starts = i.begins_transfer();
    if (starts && !counts(request.program, i, axes)) {
      step.seconds = 0;
    } else if (starts) {
      step.begins = pendings[i.pending] = static_cast<int>(steps.size());
      const std::string axis = axis_of(request.program, i);
      step.link = links.try_emplace(axis, static_cast<int>(links.size())).first->second;
    } else if (const auto begun = pendings.find(i.pending);
               i.pending >= 0 && begun != pendings.end()) {
      step.awaits = begun->second;
    }
    steps.push_back(step);
  }
  double left = 0, until_next = std::numeric_limits<double>::infinity();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    left += step->seconds;
    until_next = step->begins >= 0 ? 0 : until_next + step->seconds;
    step->left = left;
    step->until_next = until_next;
  }
  return steps;
}

enum class HideRule { stay, longest, soonest_transfer, given };

// Plays the lanes to their ends on a clock.
class HideClock {
 public:
  explicit HideClock(const std::vector<std::vector<HideStep>>* lanes)
      : lanes_(lanes), next_(lanes->size(), 0), ends_(lanes->size()) {}

  void run(HideRule rule, const std::vector<int>& given = {}) {
    std::size_t all = 0;
    for (const auto& lane : *lanes_) all += lane.size();
    while (order_.size() < all)
      take(rule == HideRule::given ? static_cast<std::size_t>(given[order_.size()]) : choose(rule));
  }
  double seconds() const {
    double end = now_;
    for (const auto& [link, free] : free_) end = std::max(end, free);
    return end;
  }
  std::vector<int> order() && { return std::move(order_); }

 private:
  const HideStep& step(std::size_t lane) const { return (*lanes_)[lane][next_[lane]]; }
  double ready(std::size_t lane) const {
    const int awaits = step(lane).awaits;
    return awaits < 0 ? now_ : std::max(now_, ends_[lane].at(awaits));
  }

  // The lane that is ready first. Among equals the rule chooses, then the lane that has run last.
  std::size_t choose(HideRule rule) const {
    const auto last = order_.empty() ? std::size_t{0} : static_cast<std::size_t>(order_.back());
    std::size_t best = lanes_->size();
    double best_ready = 0, best_worth = 0;
    for (std::size_t k = 0; k < lanes_->size(); ++k) {
      const std::size_t lane = (last + k) % lanes_->size();
      if (next_[lane] == (*lanes_)[lane].size()) continue;
      const double at = ready(lane);
      const double worth = rule == HideRule::longest            ? step(lane).left
                           : rule == HideRule::soonest_transfer ? -step(lane).until_next
                                                                : 0;
      if (best < lanes_->size() && (at > best_ready || (at == best_ready && worth <= best_worth)))
        continue;
      best = lane;
      best_ready = at;
      best_worth = worth;
    }
    return best;
  }

  void take(std::size_t lane) {
    const HideStep& step = this->step(lane);
    now_ = ready(lane);
    if (step.begins >= 0) {
      double& free = free_[step.link];
      free = ends_[lane][step.begins] = std::max(now_, free) + step.seconds;
    } else {
      now_ += step.seconds;
    }
    ++next_[lane];
    order_.push_back(static_cast<int>(lane));
  }

  const std::vector<std::vector<HideStep>>* lanes_;
  std::vector<std::size_t> next_;
  std::vector<std::map<int, double>> ends_;  // by lane: when its transfers end
  std::map<int, double> free_;               // by link: when it is free
  std::vector<int> order_;
  double now_ = 0;
};

}  // namespace

mw::Options Hide::options() {
  mw::Options options;
  return add_axes(options);
}

Hide::Hide(const mw::Values& values) : axes_(read_axes(values)) {}

std::vector<int> Hide::order(const mw::WeaveRequest& request) const {
  if (!request.seconds) {
    throw mw::Error(mw::Stage::plan, "weave.times", "weave",
                    "the weave hide needs predicted times, and the plan names no device",
                    "name one, as cluster = mw.cluster(\"dgx-h100\"); or take the weave switch, "
                    "which needs no times");
  }
  std::map<std::string, int> links;
  std::vector<std::vector<HideStep>> lanes;
  for (const mw::Segment* segment : request.lanes)
    lanes.push_back(hide_steps(request, *segment, axes_, links));
  const auto played = [&](HideRule rule, const std::vector<int>& given = {}) {
    HideClock clock(&lanes);
    clock.run(rule, given);
    return clock;
  };
  HideClock best = played(HideRule::given, Switch(axes_).order(request));
  for (const HideRule rule : {HideRule::stay, HideRule::longest, HideRule::soonest_transfer}) {
    HideClock clock = played(rule);
    if (clock.seconds() < best.seconds()) best = std::move(clock);
  }
  return std::move(best).order();
}

}  // namespace pp
