// Computes a sample's mean and standard deviation.
#include "base/spread.h"

#include <cmath>

namespace mw {

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
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

}  // namespace mw
