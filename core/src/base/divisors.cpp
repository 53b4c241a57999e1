// Lists the divisors of a size. Divisors come in pairs, one of which is at most the square root, so
// the search ends at the root.
#include "base/divisors.h"

#include <algorithm>

namespace mw {

std::vector<std::int64_t> divisors(std::int64_t size) {
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= size / d; ++d) {
    if (size % d != 0) continue;
    all.push_back(d);
    if (d != size / d) all.push_back(size / d);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<std::int64_t> divisors_near(std::int64_t size, std::int64_t value) {
  std::vector<std::int64_t> near;
  const std::vector<std::int64_t> all = divisors(size);
  const auto at = std::lower_bound(all.begin(), all.end(), value);
  if (at != all.begin()) near.push_back(*std::prev(at));
  const auto above = std::upper_bound(at, all.end(), value);
  if (above != all.end()) near.push_back(*above);
  return near;
}

}  // namespace mw
