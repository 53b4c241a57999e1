// Which cell of a sweep, or row of its report, others are compared with.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mw {

// Each axis of a cell and its value, as people read them.
using AxisValues = std::vector<std::pair<std::string, std::string>>;

bool has_value(const AxisValues& values, const std::string& value);

// The index of the candidate (null: none) that has most values in common with `own`,
// less the axes that `own` has not; the first of equals. -1: there is none.
int nearest_values(const AxisValues& own, const std::vector<const AxisValues*>& candidates);

}  // namespace mw
