// The rows of figures for papers: what they show of each mix of a sweep, run, plan, or plan that a
// search found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "record/run_facts.h"
#include "report/cells.h"
#include "report/groups.h"
#include "report/timeline.h"

namespace mw {

using Parts = std::map<std::string, double>;
using PartsOfStages = std::vector<std::pair<std::string, Parts>>;  // by the stage's name

struct PaperRow {
  std::string name;
  // Texts that are the same where the same work is done: rows of one text are ranked together. The
  // second is without the batch, which may grow along a curve of scaling.
  std::string work, work_but_batch;
  // What tells the row from those that it is not ranked with; empty: there are none.
  std::string kind;
  int ranks = 0;
  bool predicted = false;
  bool counted = true;    // it is right, or predicted to fit: it is ranked
  std::string uncounted;  // why it is not: "failed", "does not fit"
  double speed = not_known, half = not_known, step = not_known, peak = not_known, mfu = not_known;
  double loss = not_known;
  int runs = 0;
  Parts memory, bytes;
  Parts step_parts;      // seconds of the predicted step
  Parts measured_parts;  // of the measured one, where a step was traced
  PartsOfStages stages, measured_stages, stage_memory;
  Curve losses, held_out;
};

// Whether the two are ranked together: they compute the same, and both were measured or neither.
bool ranked_together(const PaperRow& a, const PaperRow& b);

struct PaperRows {
  std::vector<PaperRow> rows;
  ReportRuns runs;  // of the inputs that are runs or sweeps
  ReportGroups groups;
};

// Throws Error (options) for an input that holds nothing to draw. Names say what the rows differ
// in beside their mixes: measured or predicted, and why one is not counted.
PaperRows paper_rows(const std::vector<std::filesystem::path>& inputs,
                     const std::vector<std::string>& of_run);

}  // namespace mw
