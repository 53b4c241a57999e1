// Plans of a script that makes many: the first is shown whole, and the others a line each.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// What a line says of the result of mw.plan; null for what has to be shown whole.
Json plan_row(const Json& result);

// A table with a line for each row but the first, which is shown whole, and a line that says how
// all of them are. `rows`: two or more.
std::string plan_lines(const std::vector<Json>& rows);

}  // namespace mw
