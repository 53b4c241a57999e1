// Divisors, for the nearest valid choice in messages.
#pragma once

#include <cstdint>
#include <vector>

namespace mw {

// The divisors of `size` (1 or more) next to `value`, the one below and the one above, where there are such.
std::vector<std::int64_t> divisors_near(std::int64_t size, std::int64_t value);

}  // namespace mw
