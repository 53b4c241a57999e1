// Thins curves by keeping the extremes of equal stretches.
#include "report/curves.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace mw {

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most || most < 4) return curve;
  const std::size_t stretches = (most - 2) / 3;  // each of three points at most
  std::set<std::size_t> kept{0, curve.size() - 1};
  for (std::size_t s = 0; s < std::max<std::size_t>(1, stretches); ++s) {
    const std::size_t inner = curve.size() - 2, parts = std::max<std::size_t>(1, stretches);
    const std::size_t begin = 1 + inner * s / parts, end = 1 + inner * (s + 1) / parts;
    std::size_t lowest = end, highest = end, broken = end;
    for (std::size_t i = begin; i < end; ++i) {
      const double value = curve[i].second;
      if (!std::isfinite(value)) {
        if (broken == end) broken = i;
        continue;
      }
      if (lowest == end || value < curve[lowest].second) lowest = i;
      if (highest == end || value > curve[highest].second) highest = i;
    }
    for (const std::size_t i : {lowest, highest, broken})
      if (i < end) kept.insert(i);
  }
  Curve out;
  for (const std::size_t i : kept) out.push_back(curve[i]);
  return out;
}

}  // namespace mw
