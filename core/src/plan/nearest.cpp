#include "plan/nearest.h"

#include "base/divisors.h"

namespace mw {

std::vector<std::int64_t> nearest_divisors(std::int64_t size, std::int64_t value) {
  return divisors_near(size, value);
}

}  // namespace mw
