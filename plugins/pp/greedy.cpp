// List scheduling for zero-bubble orders: as time goes on, each free stage takes the best F or I
// that is ready.
#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "meshwright/replay.h"
#include "zero_bubble.h"

namespace pp {
namespace {

class Greedy {
 public:
  Greedy(const std::vector<int>& stage_of, const ScheduleRequest& request, double limit,
         bool shares)
      : stage_of_(stage_of),
        request_(request),
        limit_(limit),
        stages_(static_cast<std::size_t>(request.stages)),
        chunks_(stage_of.size()) {
    for (std::size_t v = 0; v < stage_of.size(); ++v) {
      const WorkBytes& bytes = request.bytes_of(static_cast<int>(v));
      chunks_[v].bytes = std::max(bytes.forward, bytes.dgrad);
      stages_[static_cast<std::size_t>(stage_of[v])].vstages.push_back(v);
    }
    if (shares && limit > 0)
      for (StageState& stage : stages_) part(stage);
    ends_.assign(2 * stage_of.size() * static_cast<std::size_t>(request.microbatches), -1);
  }

  Skeleton run() {
    for (std::size_t s = 0; s < stages_.size(); ++s) events_.emplace(0.0, s);
    while (!events_.empty()) {
      throw_if_stopped();
      const auto [now, s] = events_.top();
      events_.pop();
      if (now >= stages_[s].free) step(s, now);
    }
    Skeleton skeleton;
    for (StageState& stage : stages_) skeleton.push_back(std::move(stage.order));
    return skeleton;
  }

 private:
  struct StageState {
    std::vector<std::size_t> vstages;
    std::vector<Action> order;
    std::queue<Action> put_off;
    double free = 0, bytes = 0;
  };
  struct Chunk {
    int forwards = 0, dgrads = 0, wgrads = 0;
    int most = 0;  // most microbatches that it holds; 0: no bound of its own
    double bytes = 0;
    int held() const { return forwards - wgrads; }
  };

  // Shares out a stage's limit among its chunks. A microbatch of virtual stage v lives for about
  // the way from v to the loss and back.
  void part(StageState& stage) {
    double lives = 0;
    for (const std::size_t v : stage.vstages) lives += life(v) * chunks_[v].bytes;
    if (lives <= 0) return;
    for (const std::size_t v : stage.vstages)
      chunks_[v].most =
          std::max(1, static_cast<int>(std::lround(std::min(1e9, limit_ * life(v) / lives))));
  }
  double life(std::size_t v) const { return static_cast<double>(stage_of_.size() - v); }

  bool ready(const Need& need, int microbatch, std::size_t s, double now) const {
    if (need.vstage < 0) return true;
    const double end = ends_[slot_of(need.vstage, microbatch, need.result, request_.microbatches)];
    const bool here = stage_of_[static_cast<std::size_t>(need.vstage)] == static_cast<int>(s);
    return end >= 0 && end + (here ? 0 : request_.times_of(need.vstage).send) <= now;
  }

  // Whether a microbatch fits, with room left for a first one of every later chunk, so that what is
  // in can come out.
  bool fits(const StageState& stage, std::size_t v) const {
    if (chunks_[v].most > 0 && chunks_[v].held() >= chunks_[v].most) return false;
    double bytes = stage.bytes + chunks_[v].bytes;
    for (const std::size_t later : stage.vstages)
      if (later > v && chunks_[later].held() == 0) bytes += chunks_[later].bytes;
    return limit_ <= 0 || !above(bytes, limit_);
  }

  void step(std::size_t s, double now) {
    StageState& stage = stages_[s];
    const int vstages = static_cast<int>(stage_of_.size());
    // Prefers the I that is nearest to the first virtual stage, then the F that is nearest to the
    // loss.
    for (const Work work : {Work::dgrad, Work::forward}) {
      for (std::size_t i = 0; i < stage.vstages.size(); ++i) {
        const bool backward = work == Work::dgrad;
        const std::size_t v = stage.vstages[backward ? i : stage.vstages.size() - 1 - i];
        Chunk& chunk = chunks_[v];
        const Action action = {static_cast<int>(v), work, backward ? chunk.dgrads : chunk.forwards};
        if (action.microbatch >= request_.microbatches) continue;
        const Needs needs = needs_of(action, vstages);
        if (!ready(needs.own, action.microbatch, s, now) ||
            !ready(needs.other, action.microbatch, s, now) || (!backward && !fits(stage, v)))
          continue;
        (backward ? chunk.dgrads : chunk.forwards)++;
        if (!backward) stage.bytes += chunk.bytes;
        start(s, action, now);
        return;
      }
    }
    if (stage.put_off.empty()) return;
    const Action action = stage.put_off.front();
    stage.put_off.pop();
    const auto v = static_cast<std::size_t>(action.vstage);
    chunks_[v].wgrads++;
    stage.bytes -= chunks_[v].bytes;
    stage.free = now + request_.times_of(action.vstage).wgrad;
    events_.emplace(stage.free, s);
  }

  void start(std::size_t s, const Action& action, double now) {
    StageState& stage = stages_[s];
    const WorkTimes& times = request_.times_of(action.vstage);
    const bool backward = action.work == Work::dgrad;
    stage.order.push_back(action);
    stage.free = now + (backward ? times.dgrad : times.forward);
    ends_[filled_by(action, request_.microbatches)] = stage.free;
    if (backward) stage.put_off.push({action.vstage, Work::wgrad, action.microbatch});
    events_.emplace(stage.free, s);
    const int next = action.vstage + (backward ? -1 : 1);
    if (next < 0 || next >= static_cast<int>(stage_of_.size())) return;
    const auto other = static_cast<std::size_t>(stage_of_[static_cast<std::size_t>(next)]);
    if (other != s) events_.emplace(stage.free + times.send, other);
  }

  const std::vector<int>& stage_of_;
  const ScheduleRequest& request_;
  double limit_;
  std::vector<StageState> stages_;
  std::vector<Chunk> chunks_;
  std::vector<double> ends_;
  // The time at which a stage looks for work: it becomes free, or something has come.
  using Event = std::pair<double, std::size_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Skeleton greedy_skeleton(const std::vector<int>& stage_of, const ScheduleRequest& request,
                         double limit, bool shares) {
  return Greedy(stage_of, request, limit, shares).run();
}

}  // namespace pp
