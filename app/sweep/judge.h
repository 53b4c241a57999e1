// Whether cells that are done are right, in which order they run, and what reports see of them.
#pragma once

#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"
#include "report/cells.h"

namespace mw {

// How far losses may lie from those of the cell that they are to equal, relative to them.
struct LossBound {
  double first = 0;    // in the first steps, in which rounding has had no time to grow
  double later = 0;    // from then on
  bool grows = false;  // later, also some times what they differed by before: rounding grows
                       // from step to step, while what is wrong makes a leap
  // By how much the norm of the first step's gradient may differ, whose weights are still the same:
  // a factor in a gradient shows there, where an optimizer that normalises hides it from losses.
  // 0: by any.
  double norm = 0;
};
// Where the script does not say.
LossBound loss_bound(const std::string& precision);

// The cell that `cell` is compared with: the one of that name, or the one that has the text as the
// value of an axis and all other values alike; of those that have not all axes, the one that shares
// most. -1: there is none, or it is the cell itself.
int counterpart(const std::vector<Cell>& cells, std::size_t cell, const std::string& like);

// Throws Error (options) if no cell and no value is called so.
void check_like(const std::vector<Cell>& cells, const std::string& like, const char* key);

// Takes back what judge() has said of a result whose run is done: its reason is the run's own
// again.
void forget_judgement(Json& result);

// Sets status and reason of a result whose run is done: "failed" where a loss, or the first norm of
// gradients, differs from the reference's by more than the bound, else "done". Null `reference`:
// there is nothing to compare with, and `why` says so. What the run itself gave as its reason stays
// before that. Leaves under "same_loss_as" what was found.
void judge(Json& result, const std::string& like, const Json* reference, const std::string& why,
           const LossBound& bound);

// The cells with their rows, if there are any, as reports have them.
ReportRuns runs_of(const SweepTable& sweep, const std::vector<Cell>& cells,
                   const std::vector<Json>& rows = {});
// All cells in the order in which they run: in each round one cell of each mix (repeats_of()), in
// a random order that follows from `seed` alone. With seed 0 they run as they come.
std::vector<std::size_t> interleaved(const std::vector<Cell>& cells, std::int64_t seed);

}  // namespace mw
