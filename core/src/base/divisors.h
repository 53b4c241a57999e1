// Divisors, for the nearest valid choice in messages.
#pragma once

#include <cstdint>
#include <vector>

namespace mw {

// The divisors of `size` (1 or more), ascending.
std::vector<std::int64_t> divisors(std::int64_t size);

// The nearest divisor of `size` below `value`, and the nearest one above it, as far as they exist.
std::vector<std::int64_t> divisors_near(std::int64_t size, std::int64_t value);

}  // namespace mw
