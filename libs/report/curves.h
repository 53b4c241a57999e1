// Curves with fewer points, in which no spike is lost.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace mw {

using Curve = std::vector<std::pair<std::int64_t, double>>;  // step and value

// At most `most` (4 or more) of the curve's own points: the first, the last, and the lowest and the
// highest of each stretch between. Values that are not finite count as points, the first of a
// stretch stands for those beside it.
Curve thinned(const Curve& curve, std::size_t most);

}  // namespace mw
