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

// Which cell this process was started for.
struct CellOrder {
  std::string sweep, name, hash, folder;
  bool traces = true;  // steps, where the script does not say which
};

// What the program lends to a sweep.
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
  std::vector<std::string> words;  // the command line of a job script's call
};

// Whether a cell of this name is asked for: GoOptions::only.
bool matches(const std::string& name, const std::vector<std::string>& only);

// The cells, and that what is to be compared with is among them. Throws Error with all problems.
std::vector<Cell> cells_for(const SweepTable& sweep, const SweepProgram& program);

struct SweepOutcome {
  Json cells = Json::array();
  std::string text;  // the table
  bool failed = false;
};

// Throws Error (script, options) with all that is wrong of the script before anything is written;
// Stopped when the user wished so: then the same call goes on.
SweepOutcome run_sweep(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program);

// The results there are, in a cell's process, where another sweep is asked for them: those that
// `go` asks for, or its predictions. Writes nothing.
SweepOutcome found_results(const SweepTable& sweep, const GoOptions& go,
                           const SweepProgram& program);

// In a cell's process: runs the cell, writes its result, and ends the process.
[[noreturn]] void run_cell(const SweepTable& sweep, const CellOrder& order,
                           const SweepProgram& program);

}  // namespace mw
