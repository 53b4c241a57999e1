// What people read of a sweep: its table, lines of progress, and the script for Slurm.
#pragma once

#include <string>
#include <vector>

#include "app/sweep/cell.h"
#include "app/sweep/table.h"

namespace mw {

// What is predicted of the cells that would run.
struct SweepCost {
  int cells = 0;
  double starts = 0, trainings = 0;  // seconds, one cell after the other
  std::int64_t bytes = 0;            // of run files and checkpoints
  int reruns = 0;                    // of a cell at most
  std::string text() const;          // "41 s one after the other: …"
};

// A line for each mix, with mean and spread of its runs; `rows` are the cells' results.
std::string summary_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                         const std::vector<Json>& rows);
// The answer to which mix is the fastest, of kind "verdict". Null of one mix alone.
Json verdict_json(const SweepTable& sweep, const std::vector<Cell>& cells,
                  const std::vector<Json>& rows);

// What would run, with what is predicted of it.
std::string dry_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                     const std::vector<Planned>& planned, const std::vector<Json>& rows,
                     const SweepCost& cost);

// "loss 5.1234  18.2k tokens/s", or the reason why there is none.
std::string short_result(const Json& row);

// A complete job-array script: each job is a shard of the sweep.
struct SlurmJob {
  std::string program, script, folder;  // folder: the working directory
  std::vector<std::string> arguments;   // of `sweep SCRIPT`, in this order
  std::vector<std::size_t> cells;       // that would run, as indices into all of the sweep's
  int cores = 1;                        // of the cell that needs most
  std::int64_t memory = 0;              // bytes, likewise
  double seconds = 0;                   // predicted, of all cells
};
std::string sbatch_text(const SweepTable& sweep, const GoOptions& go, const SlurmJob& job);

}  // namespace mw
