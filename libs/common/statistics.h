// What repeated measurements have in common.
#pragma once

#include <limits>
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

}  // namespace mw
