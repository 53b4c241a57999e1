// Full products of options: the normal run takes a part of each, the matrix all of it.
#pragma once

#include <cstdlib>
#include <numeric>
#include <vector>

namespace mw::test {

// Whether a case is none of the normal run's part. `choices` number the case's value of each
// option; one case in `of` is taken, by the sum of the numbers. Every two values still stand
// together, if for any two options the numbers of all the others add up to `of` sums in a row.
// Such a test has the tag [sampled].
inline bool left_out(const std::vector<int>& choices, int of) {
  static const bool all = std::getenv("MESHWRIGHT_MATRIX") != nullptr;
  return !all && std::accumulate(choices.begin(), choices.end(), 0) % of != 0;
}

}  // namespace mw::test
