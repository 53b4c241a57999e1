#include "base/divisors.h"

namespace mw {

std::vector<std::int64_t> divisors_near(std::int64_t size, std::int64_t value) {
  std::int64_t below = 0, above = 0;
  // Divisors come in pairs, one of which is no more than the root: a prime size is no long search.
  for (std::int64_t d = 1; d <= size / d; ++d) {
    if (size % d != 0) continue;
    for (const std::int64_t divisor : {d, size / d}) {
      if (divisor < value && divisor > below) below = divisor;
      if (divisor > value && (above == 0 || divisor < above)) above = divisor;
    }
  }
  std::vector<std::int64_t> near;
  if (below > 0) near.push_back(below);
  if (above > 0) near.push_back(above);
  return near;
}

}  // namespace mw
