// Counts the values that cells of a sweep have in common.
#include "common/nearest_values.h"

#include <algorithm>
#include <limits>

namespace mw {

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
