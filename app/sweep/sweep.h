// A sweep: cells that are run, found done, predicted or only listed, and what came of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/script_files.h"
#include "app/sweep/grid.h"
#include "app/sweep/planned.h"
#include "app/sweep/table.h"
#include "script/read_experiment.h"

namespace mw {

// The cell that this process was started for.
struct CellOrder {
  std::string sweep, name, hash, folder;
  bool traces = true;  // traces steps, if the script does not say which
};

// What a sweep gets from the program.
struct SweepProgram {
  ReadContext context;
  std::string script;  // its name as it was given
  ScriptFiles files;
  bool force = false;
  // Trains, and returns the result as mw.train has it.
  ExperimentVerb train;
  ExperimentVerb plan;
  std::function<void(const std::string&)> say;  // for people: on stderr
  std::function<void(const Json&)> emit;        // a cell's row, once it is final
  Json again;  // what a cell's process must be given to run the script in the same way
  std::vector<std::string> words;  // arguments of `sweep SCRIPT` in a job's script
};

// Whether a cell of this name is asked for: GoOptions::only.
bool matches(const std::string& name, const std::vector<std::string>& only);

// The cells of a sweep. Throws Error with all problems, also if what cells are to be compared with
// is not among them.
std::vector<Cell> cells_for(const SweepTable& sweep, const SweepProgram& program);

struct SweepOutcome {
  Json cells = Json::array();
  std::string text;  // table for people
  bool failed = false;
};

// Runs, lists or predicts the cells. Throws Error (script, options) with all mistakes of the script
// before anything is written, and Stopped when the user wished so: the same call then goes on.
SweepOutcome run_sweep(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program);

// In a cell's process, the results of another sweep of the script: those that `go` asks for, or its
// predictions. Runs and writes nothing.
SweepOutcome found_results(const SweepTable& sweep, const GoOptions& go,
                           const SweepProgram& program);

// In a cell's process: runs the cell, writes its result, and ends the process.
[[noreturn]] void run_cell(const SweepTable& sweep, const CellOrder& order,
                           const SweepProgram& program);

}  // namespace mw
