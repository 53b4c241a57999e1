// kFkB (Wang et al. 2023, "Ada-Grouper"): 1F1B of groups. A stage does k forwards, then k
// backwards, where 1F1B does one of each: transfers of a group's first microbatches go on beside
// its later ones, so that a slow network is hidden, for k times the activations.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/schedule.h"

namespace {

using mw::Action;
using mw::Schedule;
using mw::ScheduleRequest;
using mw::Work;

class Grouped : public mw::Scheduler {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("k", "microbatches of a group")
        .fallback(2)
        .range(1, 1 << 20)
        .positional("k")
        .unit("microbatches");
  }
  explicit Grouped(const mw::Values& values) : k_(values.int32("k")) {}

  int fixed_chunks() const override { return 1; }

  Schedule make(const ScheduleRequest& request) const override {
    if (request.chunks != 1) {
      throw mw::Error(mw::Stage::plan, "schedule.chunks", "chunks",
                      fmt::format("{} takes one chunk a stage, got {}", name(), request.chunks),
                      "write chunks = 1, or schedule = \"interleaved\"");
    }
    Schedule schedule;
    schedule.name = name();
    schedule.microbatches = request.microbatches;
    schedule.stage_of = placement(request.stages, 1);
    schedule.order.resize(static_cast<std::size_t>(request.stages));
    const int groups = (request.microbatches + k_ - 1) / k_;
    for (int s = 0; s < request.stages; ++s) {
      auto& order = schedule.order[static_cast<std::size_t>(s)];
      const auto group = [&](Work work, int g) {
        for (int m = g * k_; m < std::min(request.microbatches, (g + 1) * k_); ++m)
          order.push_back(Action{s, work, m});
      };
      const int ahead = std::min(groups, request.stages - s);
      for (int g = 0; g < groups + ahead; ++g) {
        if (g >= ahead) group(Work::backward, g - ahead);
        if (g < groups) group(Work::forward, g);
      }
    }
    keep_to(request, schedule);
    return schedule;
  }

 private:
  // A schedule says itself what it cannot keep to: here, which k would do.
  void keep_to(const ScheduleRequest& request, const Schedule& schedule) const {
    if (request.memory_limit <= 0) return;
    const mw::ScheduleTimeline timeline = mw::simulate(schedule, request);
    const double most = *std::max_element(timeline.bytes_peak.begin(), timeline.bytes_peak.end());
    if (most <= request.memory_limit) return;
    throw mw::Error(mw::Stage::plan, "schedule.memory", "memory",
                    fmt::format("{} with k = {} holds {:g} of activations, the limit is {:g}",
                                name(), k_, most, request.memory_limit),
                    k_ > 1 ? "a smaller k" : "a zero-bubble schedule, which keeps to less");
  }

  int k_;
};

}  // namespace

MESHWRIGHT_PLUGIN("kfkb", "1.0.0", "1F1B of groups of k microbatches (Wang et al. 2023)",
                  mw::scheduler<Grouped>())
