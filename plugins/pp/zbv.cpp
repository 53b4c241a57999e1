// ZBV (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): two chunks in a V, no
// bubble beyond warm-up, in 1F1B's memory.
#include <algorithm>

#include "schedulers.h"
#include "zero_bubble.h"

namespace pp {
namespace {

// The paper's order for equal times, of F and I. A stage has 2p chunks' activations when it is
// full: those on the way down the V, which stay the longer the nearer to stage 0,
// and those on the way up.
Skeleton v_order(int stages, int microbatches) {
  const int m = std::max(microbatches, 2 * stages - 1);
  Skeleton skeleton(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    auto& order = skeleton[static_cast<std::size_t>(s)];
    const int down = s, up = 2 * stages - 1 - s;
    int f_down = 0, f_up = 0, i_down = 0, i_up = 0;
    const auto add = [&](int vstage, Work work, int& count) {
      if (count < microbatches) order.push_back({vstage, work, count});
      ++count;
    };
    while (f_down < 2 * (stages - s) - 1) add(down, Work::forward, f_down);
    while (f_up < s) {
      add(up, Work::forward, f_up);
      add(down, Work::forward, f_down);
    }
    while (i_up < stages - s) {
      add(up, Work::forward, f_up);
      add(up, Work::dgrad, i_up);
    }
    while (f_up < m) {
      if (f_down < m) add(down, Work::forward, f_down);
      add(down, Work::dgrad, i_down);
      add(up, Work::forward, f_up);
      add(up, Work::dgrad, i_up);
    }
    while (i_up < m) {
      add(down, Work::dgrad, i_down);
      add(up, Work::dgrad, i_up);
    }
    while (i_down < m) add(down, Work::dgrad, i_down);
  }
  return skeleton;
}

}  // namespace

Schedule ZeroBubbleV::unpaired(const ScheduleRequest& request) const {
  validate(*this, request);
  const auto stage_of = v_placement(request.stages);
  const double limit = request.memory_limit > 0 ? request.memory_limit
                                                : std::min(request.stages, request.microbatches) *
                                                      most_bytes_of_one(stage_of, request);
  ZeroBubbleSearch search(*this, request, limit);
  search.add(v_order(request.stages, request.microbatches));
  for (const bool shares : {true, false})
    if (!search.perfect()) search.add(greedy_skeleton(stage_of, request, limit, shares));
  return search.best();
}

}  // namespace pp
