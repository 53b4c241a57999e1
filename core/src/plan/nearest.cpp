#include "plan/nearest.h"

#include <algorithm>

namespace mw {

std::vector<std::int64_t> nearest_divisors(std::int64_t size, std::int64_t value) {
  std::vector<std::int64_t> near;
  for (std::int64_t d = std::min(value - 1, size); d >= 1 && near.empty(); --d) {
    if (size % d == 0) near.push_back(d);
  }
  for (std::int64_t d = value + 1; d <= size; ++d) {
    if (size % d == 0) {
      near.push_back(d);
      break;
    }
  }
  return near;
}

}  // namespace mw
