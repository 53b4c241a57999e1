// What people read of a sweep: its table, lines of progress, and the script for Slurm.
#pragma once

#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"

namespace mw {

struct SweepCost {
  int cells = 0;
  double starts = 0, trainings = 0;  // predicted seconds, one cell after the other
  std::int64_t bytes = 0;            // bytes of run files and checkpoints
  int reruns = 0;                    // reruns of a cell, at most
  std::string text() const;          // "predicted 41 s one after the other: …"
};

// A table with a line for each mix, with mean and spread of its runs. `rows`: the cells' results.
std::string summary_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                         const std::vector<Json>& rows);
// The answer to which mix is the fastest, of kind "verdict". Null if there is only one mix.
Json verdict_json(const SweepTable& sweep, const std::vector<Cell>& cells,
                  const std::vector<Json>& rows);

// A list of the cells that would run, with what is predicted of them.
std::string dry_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                     const std::vector<Planned>& planned, const std::vector<Json>& rows,
                     const SweepCost& cost);

// "loss 5.1234  18.2k tokens/s", or the reason why there is none.
std::string short_result(const Json& row);

// A complete job-array script: each job is a shard of the sweep.
struct SlurmJob {
  std::string program, script, folder;  // folder: the working directory
  std::vector<std::string> arguments;   // arguments of `sweep SCRIPT`, in this order
  std::vector<std::size_t> cells;  // cells that would run, as indices into all cells of the sweep
  int cores = 1;                   // cores for the cell that needs most
  std::int64_t memory = 0;         // bytes for the cell that needs most
  double seconds = 0;              // predicted seconds of all cells
};
std::string sbatch_text(const SweepTable& sweep, const GoOptions& go, const SlurmJob& job);

}  // namespace mw
