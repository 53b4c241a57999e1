// Computes a sample's mean, standard deviation, median and quantiles, and counts the values that
// cells of a sweep have in common.
#include "common/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

double median_after_warm_up(const std::vector<double>& values) {
  std::vector<double> kept(values.begin() + static_cast<std::ptrdiff_t>(warm_up(values.size())),
                           values.end());
  const double middle = median(std::move(kept));
  return std::isnan(middle) ? 0 : middle;
}

bool has_value(const AxisValues& values, const std::string& value) {
  return std::any_of(values.begin(), values.end(),
                     [&](const auto& one) { return one.second == value; });
}

int nearest_values(const AxisValues& own, const std::vector<const AxisValues*>& candidates) {
  int nearest = -1, most = std::numeric_limits<int>::min();
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    if (candidates[c] == nullptr) continue;
    int common = 0;
    for (const auto& [axis, value] : *candidates[c]) {
      const auto found = std::find_if(
          own.begin(), own.end(), [&axis = axis](const auto& one) { return one.first == axis; });
      if (found == own.end()) --common;
      if (found != own.end() && found->second == value) ++common;
    }
    if (common <= most) continue;
    most = common;
    nearest = static_cast<int>(c);
  }
  return nearest;
}

}  // namespace mw
