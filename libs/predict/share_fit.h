// Fits a few shares of a description to measured seconds, of which there may be fewer.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace mw {

// What is fitted: a positive number and its bounds.
struct Share {
  std::string key;  // "device.gemm"
  double value = 0, low = 0, high = 0;
};

struct FittedShares {
  std::vector<double> values;
  std::vector<bool> told;         // whether any row changes with the share
  std::vector<double> predicted;  // seconds of each row by the values
  // Seconds of each row by a fit to all others: an error on what was not fitted to. Along straight
  // lines between logarithms, from the values.
  std::vector<double> left_out;
};

// The seconds of each row by these values.
using PredictRows = std::function<std::vector<double>(const std::vector<double>& values)>;

// Shares within their bounds with the least sum of |log(predicted / measured)|, over `error`, and
// of squares of their logarithms' changes, over `change`: a few rows change what they depend on
// most, and what no row tells of stays.
FittedShares fit_shares(const std::vector<Share>& shares, const std::vector<double>& measured,
                        const PredictRows& predict, double error, double change);

}  // namespace mw
