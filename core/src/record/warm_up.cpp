// Takes the median of what a run measured in each step.
#include "record/warm_up.h"

#include <algorithm>
#include <cmath>

namespace mw {

double median_after_warm_up(const std::vector<double>& values) {
  std::vector<double> kept(values.begin() + static_cast<std::ptrdiff_t>(warm_up(values.size())),
                           values.end());
  std::erase_if(kept, [](double value) { return std::isnan(value); });
  if (kept.empty()) return 0;
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2);
  std::nth_element(kept.begin(), middle, kept.end());
  if (kept.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(kept.begin(), middle)) / 2;
}

}  // namespace mw
