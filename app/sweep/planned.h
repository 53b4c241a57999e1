// Reads and plans the experiments of cells, without running them.
#pragma once

#include <functional>
#include <vector>

#include "app/sweep/cell.h"
#include "script/read_experiment.h"

namespace mw {

// What a verb makes of an experiment: the object of `plan`, or of `train`.
using ExperimentVerb = std::function<Json(const Experiment&)>;

// Plans each cell that is not skipped, in the cells' order; with the prediction if `predict` is
// there. Where there are many, in several processes. `limit`: bytes that a cell's process may
// allocate; 0: those of this machine.
std::vector<Planned> plan_cells(const std::vector<Cell>& cells, const ReadContext& context,
                                std::int64_t limit, const ExperimentVerb& predict);

// The experiment of one cell. Throws Error.
Experiment experiment_of(const Cell& cell, const ReadContext& context);
// Its identity, of its experiment's hash: see Planned::hash.
std::string hash_of(const Cell& cell, const std::string& hash);

// Throws Error with what is wrong of the script in any cell, each once, and with cells that are one
// experiment twice over.
void check_planned(const std::vector<Cell>& cells, const std::vector<Planned>& planned);

}  // namespace mw
