// ZB-H1 and ZB-H2 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"):
// 1F1B with B split into I and W.
#include <algorithm>
#include <cmath>

#include "schedulers.h"
#include "zero_bubble.h"

namespace pp {
namespace {

// Each stage runs ahead[stage] F's first, then I and F in turn.
Skeleton alternating(const ScheduleRequest& request, const std::vector<int>& ahead) {
  const int m = request.microbatches;
  Skeleton skeleton(ahead.size());
  for (std::size_t s = 0; s < ahead.size(); ++s) {
    const int first = std::min(m, ahead[s]), v = static_cast<int>(s);
    for (int k = 0; k < m + first; ++k) {
      if (k >= first) skeleton[s].push_back({v, Work::dgrad, k - first});
      if (k < m) skeleton[s].push_back({v, Work::forward, k});
    }
  }
  return skeleton;
}

}  // namespace

Schedule ZeroBubble::make(const ScheduleRequest& request) const {
  Schedule schedule = unpaired(request);
  if (!pair_) return schedule;
  pair_wgrads(schedule);
  refuse_if_above_limit(schedule, request);
  return schedule;
}

Schedule ZeroBubbleH::unpaired(const ScheduleRequest& request) const {
  validate(*this, request);
  const int p = request.stages;
  const auto stage_of = placement(p, 1);
  const double most = most_bytes_of_one(stage_of, request);
  const int held = std::min(request.microbatches, doubled_ ? 2 * p - 1 : p);
  ZeroBubbleSearch search(*this, request,
                          request.memory_limit > 0 ? request.memory_limit : held * most);
  // Tries stages that are ahead by twice 1F1B's microbatches down to 1F1B's: with unequal times, or
  // when memory makes W's come early, fewer can be over sooner.
  const int variants = doubled_ ? 4 : 0;
  for (int variant = variants; variant >= 0; --variant) {
    std::vector<int> ahead;
    for (int s = 0; s < p; ++s) {
      const int more = variants == 0 ? 0 : (p - 1 - s) * variant / variants;
      const double one = bytes_of_one(stage_of, s, request);
      const double fit = one > 0 ? std::floor(search.limit() / one * (1 + 1e-9)) : p - s + more;
      ahead.push_back(std::max(1, static_cast<int>(std::min<double>(p - s + more, fit))));
      // A stage that is further ahead than the one before it would wait for F's that wait for it.
      if (s > 0) ahead[s] = std::min(ahead[s], ahead[s - 1]);
    }
    search.add(alternating(request, ahead));
  }
  return search.best();
}

}  // namespace pp
