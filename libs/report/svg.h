// What the drawings as SVG have in common.
#pragma once

#include <cmath>

namespace mw {

// The distance between ticks: 1, 2 or 5 times a power of ten, for about `count` ticks.
inline double tick_distance(double span, double count) {
  const double rough = span / count, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= rough) return step * power;
  return 10 * power;
}

}  // namespace mw
