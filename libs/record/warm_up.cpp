// Takes the median of what a run measured in each step.
#include "record/warm_up.h"

#include <cmath>
#include <utility>

#include "common/statistics.h"

namespace mw {

double median_after_warm_up(const std::vector<double>& values) {
  std::vector<double> kept(values.begin() + static_cast<std::ptrdiff_t>(warm_up(values.size())),
                           values.end());
  const double middle = median(std::move(kept));
  return std::isnan(middle) ? 0 : middle;
}

}  // namespace mw
