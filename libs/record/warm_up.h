// Which steps of a run count for its times.
#pragma once

#include <cstddef>
#include <vector>

namespace mw {

// The first steps fault pages in and fill caches: at most two, and never most of a short run.
constexpr std::size_t warm_up(std::size_t steps) {
  return steps > 4 ? 2 : steps > 1 ? 1 : 0;
}

// The median of what comes after the warm-up, what is not finite apart. 0 of none.
double median_after_warm_up(const std::vector<double>& values);

}  // namespace mw
