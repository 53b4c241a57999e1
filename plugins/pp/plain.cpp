// GPipe, 1F1B and looped breadth-first: schedules whose order follows from the numbers of
// stages, chunks and microbatches alone.
#include <algorithm>

#include "schedulers.h"

namespace pp {

void fill_looped_bfs(const ScheduleRequest& request, Schedule& schedule) {
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

void fill_gpipe(const ScheduleRequest& request, Schedule& schedule) {
  fill_looped_bfs(request, schedule);
}

void fill_1f1b(const ScheduleRequest& request, Schedule& schedule) {
  const int m = request.microbatches;
  for (int s = 0; s < request.stages; ++s) {
    auto& order = schedule.order[static_cast<std::size_t>(s)];
    const int ahead = std::min(m, request.stages - s);
    for (int k = 0; k < m + ahead; ++k) {
      // The first B follows the F that fills the pipe below this stage.
      if (k >= ahead) order.push_back({s, Work::backward, k - ahead});
      if (k < m) order.push_back({s, Work::forward, k});
    }
  }
}

}  // namespace pp
