// Reads and plans the experiments of cells, without running them.
#pragma once

#include <functional>
#include <vector>

#include "app/sweep/cell.h"
#include "script/read_experiment.h"

namespace mw {

// A verb, `plan` or `train`: takes an experiment, and returns its result.
using ExperimentVerb = std::function<Json(const Experiment&)>;

// Plans each cell that is not skipped, in the cells' order; many cells in several processes.
// `predict`: makes the prediction, if it is set. `limit`: bytes that a cell's process may allocate;
// 0: those of this machine.
std::vector<Planned> plan_cells(const std::vector<Cell>& cells, const ReadContext& context,
                                std::int64_t limit, const ExperimentVerb& predict);

// The experiment of one cell. Throws Error.
Experiment experiment_of(const Cell& cell, const ReadContext& context);
// The cell's Planned::hash. `hash`: its experiment's.
std::string hash_of(const Cell& cell, const std::string& hash);

// Throws Error with the script's mistakes in all cells, each once.
void check_planned(const std::vector<Cell>& cells, const std::vector<Planned>& planned);

}  // namespace mw
