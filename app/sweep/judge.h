// Whether cells that are done are right, in which order they run, and what reports see of them.
#pragma once

#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"
#include "record/cells.h"

namespace mw {

// How far losses may lie from those of the cell that they must equal, relative to these.
struct LossBound {
  double first = 0;  // bound in the first steps, in which rounding has had no time to grow
  double later = 0;  // bound in later steps
  // later differences may grow from step to step, as rounding does; faults leap
  bool grows = false;
  // The bound of the first step's gradient norm, at which weights are still the same. A wrong
  // factor in a gradient shows there, while an optimizer that normalises hides it from losses. 0:
  // no bound.
  double norm = 0;
};
// The bound where the script gives none.
LossBound loss_bound(const std::string& precision);

// The cell that `cell` is compared with: the cell named `like`, or the one that has `like` as the
// value of an axis and all other values alike. If cells lack axes, the one that shares most values.
// -1: there is none, or it is the cell itself.
int counterpart(const std::vector<Cell>& cells, std::size_t cell, const std::string& like);

// Throws Error (options) if no cell is named `like`, and no value of an axis is.
void check_like(const std::vector<Cell>& cells, const std::string& like, const char* key);

// Removes judge()'s verdict from a result whose run is done: the reason is the run's own again.
void forget_judgement(Json& result);

// Sets status and reason of a result whose run is done: "failed" if a loss, or the first gradient
// norm, differs from the reference's by more than the bound, else "done". Null `reference`: there
// is nothing to compare with, and `why` says so. The run's own reason stays in front. What was
// found is put under "same_loss_as".
void judge(Json& result, const std::string& like, const Json* reference, const std::string& why,
           const LossBound& bound);

// The cells as reports take them, with their rows if there are any.
ReportRuns runs_of(const SweepTable& sweep, const std::vector<Cell>& cells,
                   const std::vector<Json>& rows = {});
// All cells in the order in which they run: in each round one cell of each mix (repeats_of()), in
// a random order that follows from `seed` alone. With seed 0 they run as they come.
std::vector<std::size_t> interleaved(const std::vector<Cell>& cells, std::int64_t seed);

}  // namespace mw
