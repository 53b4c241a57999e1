// What repeated measurements have in common, which steps of a run are measured, and which cell of a
// sweep is nearest to another.
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
    const std::vector<double>& values);  // what is not finite does not count

// The value that so large a share of the values lies below. There must be one.
double quantile(std::vector<double> values, double share);
// The one in the middle, or the mean of the two; of what is finite. NaN of none.
double median(std::vector<double> values);

// The first steps fault pages in and fill caches: at most two, and never most of a short run.
constexpr std::size_t warm_up(std::size_t steps) {
  return steps > 4 ? 2 : steps > 1 ? 1 : 0;
}

// The median of what comes after the warm-up, what is not finite apart. 0 of none.
double median_after_warm_up(const std::vector<double>& values);

// Each axis of a cell and its value, as people read them.
using AxisValues = std::vector<std::pair<std::string, std::string>>;

bool has_value(const AxisValues& values, const std::string& value);

// The index of the candidate (null: none) that has most values in common with `own`,
// less the axes that `own` has not; the first of equals. -1: there is none.
int nearest_values(const AxisValues& own, const std::vector<const AxisValues*>& candidates);

}  // namespace mw
