// Interleaved 1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
// Clusters Using Megatron-LM"): microbatches go in groups, a group through chunk after chunk.
#include <algorithm>
#include <utility>
#include <vector>

#include "schedulers.h"

namespace pp {
namespace {

// `sizes`: microbatches of each group. The order is that of groups of `width` microbatches, without
// those that a group lacks; for full groups it is Megatron's.
Schedule in_groups(const ScheduleRequest& request, bool pair, const Schedule& empty,
                   const std::vector<int>& sizes, int width) {
  const int p = request.stages, chunks = request.chunks;
  std::vector<std::pair<int, int>> forwards, backwards;  // (chunk, microbatch), -1: none
  int first = 0;
  for (const int size : sizes) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int k = 0; k < width; ++k) {
        const int microbatch = k < size ? first + k : -1;
        forwards.emplace_back(chunk, microbatch);
        backwards.emplace_back(chunks - 1 - chunk, microbatch);
      }
    }
    first += size;
  }
  Schedule schedule = empty;
  for (int s = 0; s < p; ++s) {
    auto& order = schedule.order[static_cast<std::size_t>(s)];
    order.reserve(2 * forwards.size());
    const auto total = forwards.size();
    const auto ahead =
        std::min(total, static_cast<std::size_t>((chunks - 1) * width + 2 * (p - 1 - s) + 1));
    for (std::size_t i = 0; i < total + ahead; ++i) {
      const auto [into, next] = i < total ? forwards[i] : std::pair{0, -1};
      const auto [from, last] = i >= ahead ? backwards[i - ahead] : std::pair{0, -1};
      const Action forward = {into * p + s, Work::forward, next};
      const Action backward = {from * p + s, Work::backward, last};
      if (pair && next >= 0 && last >= 0) {
        add_pair(schedule, s, forward, backward);
        continue;
      }
      if (last >= 0) order.push_back(backward);
      if (next >= 0) order.push_back(forward);
    }
  }
  return schedule;
}

}  // namespace

void fill_interleaved(const ScheduleRequest& request, bool pair, Schedule& schedule) {
  // One chunk leaves nothing to interleave.
  if (request.chunks == 1) return fill_1f1b(request, pair, schedule);
  const int p = request.stages, m = request.microbatches;
  std::vector<int> full(static_cast<std::size_t>(m / p), p);
  if (m % p != 0) full.push_back(m % p);
  Schedule best = in_groups(request, pair, schedule, full, p);
  if (m > p && m % p != 0) {
    // Takes groups of about one size, none smaller than the number of stages, or full ones and a
    // short one at the end, whichever is over sooner.
    const int groups = m / p, width = (m + groups - 1) / groups;
    std::vector<int> even;
    for (int g = 0; g < groups; ++g) even.push_back(m / groups + (g < m % groups ? 1 : 0));
    Schedule other = in_groups(request, pair, schedule, even, width);
    if (simulate(other, request).makespan < simulate(best, request).makespan)
      best = std::move(other);
  }
  schedule.order = std::move(best.order);
  schedule.joined = std::move(best.joined);
}

}  // namespace pp
