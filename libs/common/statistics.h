// Means, medians and quantiles of repeated measurements, the warm-up of a run, and the cell of a
// sweep that is nearest to another.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace mw {

// Mean and standard deviation of a sample (n - 1); NaN where there is none.
struct MeanAndDeviation {
  double mean = std::numeric_limits<double>::quiet_NaN();
  double deviation = std::numeric_limits<double>::quiet_NaN();
  int n = 0;
};
MeanAndDeviation mean_and_deviation(
    const std::vector<double>& values);  // values that are not finite do not count

// The value below which a share `share` of the values lies. `values` may not be empty.
double quantile(std::vector<double> values, double share);
// The median of the finite values; NaN if there are none.
double median(std::vector<double> values);

// How many steps at first fault pages in and fill caches: at most two, and never most of a short
// run.
constexpr std::size_t warm_up(std::size_t steps) {
  return steps > 4 ? 2 : steps > 1 ? 1 : 0;
}

// The median of the finite values after the warm-up; 0 if there are none.
double median_after_warm_up(const std::vector<double>& values);

// The axes of a cell of a sweep and its value of each, as texts for people.
using AxisValues = std::vector<std::pair<std::string, std::string>>;

bool has_value(const AxisValues& values, const std::string& value);

// The index of the candidate (null: none) with the most values in common with `own`, less one for
// each axis that `own` lacks; the first of equals. -1: there is none.
int nearest_values(const AxisValues& own, const std::vector<const AxisValues*>& candidates);

}  // namespace mw
