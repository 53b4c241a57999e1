// GPipe, 1F1B and looped breadth-first: schedules whose order follows from the numbers of
// stages, chunks and microbatches alone.
#include <algorithm>

#include "schedulers.h"

namespace pp {

void fill_looped_bfs(const ScheduleRequest& request, bool, Schedule& schedule) {
  for (int s = 0; s < request.stages; ++s) {
    auto& order = schedule.order[static_cast<std::size_t>(s)];
    for (int chunk = 0; chunk < request.chunks; ++chunk)
      for (int k = 0; k < request.microbatches; ++k)
        order.push_back({chunk * request.stages + s, Work::forward, k});
    for (int chunk = request.chunks - 1; chunk >= 0; --chunk)
      for (int k = 0; k < request.microbatches; ++k)
        order.push_back({chunk * request.stages + s, Work::backward, k});
  }
}

void fill_gpipe(const ScheduleRequest& request, bool pair, Schedule& schedule) {
  fill_looped_bfs(request, pair, schedule);
}

void fill_1f1b(const ScheduleRequest& request, bool pair, Schedule& schedule) {
  const int m = request.microbatches, p = request.stages;
  for (int s = 0; s < p; ++s) {
    auto& order = schedule.order[static_cast<std::size_t>(s)];
    // The first B follows the F that fills the pipe below this stage. With pairs, a stage's pair
    // waits for the pair of the stage below, and that one for an earlier pair of this stage: one
    // more F ahead for each stage below keeps the two stages from waiting for each other in turn.
    const int ahead = std::min(m, pair ? 2 * (p - 1 - s) + 1 : p - s);
    for (int k = 0; k < m + ahead; ++k) {
      const Action forward = {s, Work::forward, k}, backward = {s, Work::backward, k - ahead};
      if (pair && k >= ahead && k < m) {
        add_pair(schedule, s, forward, backward);
        continue;
      }
      if (k >= ahead) order.push_back(backward);
      if (k < m) order.push_back(forward);
    }
  }
}

}  // namespace pp
