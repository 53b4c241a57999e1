// The pipeline schedule @NAME@: in which order each stage computes the microbatches. Sends,
// receives and reductions are put between by the planner.
#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/schedule.h"

namespace {

using mw::Schedule;
using mw::ScheduleRequest;
using mw::Work;

// One forward, one backward, where each stage may run `ahead` forwards ahead of what its place in
// the pipe asks for.
class @CLASS@ : public mw::Scheduler {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ahead", "forwards that a stage runs ahead of 1F1B")
        .fallback(1)
        .range(0, 1 << 20)
        .positional("ahead")
        .unit("microbatches");
  }
  explicit @CLASS@(const mw::Values& values) : ahead_(values.int32("ahead")) {}

  int fixed_chunks() const override { return 1; }

  Schedule make(const ScheduleRequest& request) const override {
    Schedule schedule;
    schedule.name = name();
    schedule.microbatches = request.microbatches;
    schedule.stage_of = placement(request.stages, 1);
    schedule.order.resize(static_cast<std::size_t>(request.stages));
    for (int s = 0; s < request.stages; ++s) {
      auto& order = schedule.order[static_cast<std::size_t>(s)];
      const int warm_up = std::min(request.microbatches, request.stages - s + ahead_);
      for (int k = 0; k < request.microbatches + warm_up; ++k) {
        if (k >= warm_up) order.push_back({s, Work::backward, k - warm_up});
        if (k < request.microbatches) order.push_back({s, Work::forward, k});
      }
    }
    return schedule;
  }

 private:
  int ahead_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "1F1B whose stages run further ahead",
                  mw::scheduler<@CLASS@>())
