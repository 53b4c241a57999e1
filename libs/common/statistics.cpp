// Computes a sample's mean, standard deviation, median and quantiles.
#include "common/statistics.h"

#include <algorithm>
#include <cmath>

namespace mw {

MeanAndDeviation mean_and_deviation(const std::vector<double>& values) {
  MeanAndDeviation spread;
  double sum = 0, squares = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    sum += value;
    ++spread.n;
  }
  if (spread.n == 0) return spread;
  spread.mean = sum / spread.n;
  for (const double value : values) {
    if (std::isfinite(value)) squares += (value - spread.mean) * (value - spread.mean);
  }
  if (spread.n > 1) spread.deviation = std::sqrt(squares / (spread.n - 1));
  return spread;
}

double quantile(std::vector<double> values, double share) {
  const auto count = static_cast<double>(values.size());
  const auto at = static_cast<std::ptrdiff_t>(std::min(share * count, count - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace mw
