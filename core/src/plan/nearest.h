// The nearest valid choices, for messages.
#pragma once

#include <cstdint>
#include <vector>

namespace mw {

// The divisors of `size` next to `value`, the one below and the one above, where there are such.
std::vector<std::int64_t> nearest_divisors(std::int64_t size, std::int64_t value);

}  // namespace mw
