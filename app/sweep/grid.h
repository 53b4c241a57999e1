// The grid of a sweep: its axes, and the cells that they make.
//
// An axis is a key of the experiment ("plan", "model.layers", "plan[2].ways") with a list of
// values; or any other name with tables of several keys, which are set together, and under "over" a
// grid of their own; a table { label = value } names the values; a function of the cell so far
// returns such a list, or nothing where the axis does not apply.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"

namespace mw {

// Calls a script's function; see lua/host.h.
using GridCall = std::function<Json(const Json& function, const std::vector<Json>& arguments)>;

// Add what is wrong with `over` and with `base` to `problems`, before any function is called.
void check_grid(const Json& over, Problems& problems, const std::string& path = "over");
void check_base(const Json& base, Problems& problems);

// The cells in order: the axes by name, those that are functions after the others, `seed` last.
// Throws Error with all problems.
std::vector<Cell> cells_of(const SweepTable& sweep, const GridCall& call);

struct AxisText {
  std::string key;
  std::vector<std::string> values;
};
// Each axis with the values that cells have, in the order in which they come.
std::vector<AxisText> axes_of(const std::vector<Cell>& cells);

}  // namespace mw
