// The cells of a report: the runs in given files and folders, with their numbers, and the settings
// of their sweeps.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/parting.h"
#include "common/run_timing.h"
#include "common/statistics.h"
#include "record/run_facts.h"

namespace mw {

// One run of a report, done or not; a number that is not known is NaN.
struct ReportCell {
  std::string name, status, reason, seed, hash, mix;
  std::string label;     // in a sweep, the name without the values of seed and repeat
  std::string sweep;     // name of the sweep; empty: none
  std::string file;      // the run file, or its folder
  AxisValues values;     // values of the sweep's axes, without the seed
  std::string settings;  // JSON: the experiment, without seed and keys of the run alone
  // A key that is equal for repeats: RunHead::hash_without_seed; in files of earlier versions,
  // `settings`.
  std::string repeats;
  std::vector<std::pair<std::string, std::string>> work;  // work_of()
  int ranks = 0;
  double seconds = not_known;  // time of the whole cell, with the start of its process
  std::int64_t steps = 0;
  double loss = not_known, held_out = not_known;  // the last losses, in nats per token
  MeasuredPair step_seconds, tokens_per_second, peak;
  double mfu = not_known, bubble = not_known;         // 0..1
  std::map<std::string, MeasuredPair> memory, bytes;  // by category, by axis (RunFacts)
  std::vector<std::pair<std::int64_t, double>> losses;
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> series;
  std::vector<std::pair<std::string, std::string>> machine;  // host, CPU, versions: name and text

  // Whether the losses were compared with another cell's, if the sweep asks for it.
  std::optional<bool> compared;
  std::string held_to;    // cell or value with whose loss its sweep compares others; empty: none
  bool fits = true;       // whether it fits into memory, as predicted
  double step_error = 0;  // average relative error of predicted step times on the machine
  RunTiming timing;       // times, and cores that other programs used (not in older files)
  double flops = 0;       // predicted FLOPs of a step, with recomputed ones; 0: not known
  Parting parting;        // the difference of the measured step from the predicted one
  StepParts predicted_parts;                                  // step_parts() of the predicted step
  std::map<int, StepParts> predicted_stage_parts;             // step_parts() of each stage
  std::map<int, std::map<std::string, double>> stage_memory;  // predicted bytes, by category
  std::map<int, StepParts> parts;  // each stage's part of a traced step; empty: none was traced
  std::optional<Account> account;  // account of a step; empty: none was taken
  int beside = 0;                  // the most cells that ran at the same time as this one

  bool done() const { return status == "done"; }
  bool measured() const { return steps > 0; }
};

struct ReportRuns {
  std::string name;  // names of the sweeps; empty: there are none
  std::vector<std::pair<std::string, std::string>> asked;  // facts of the sweeps, for people
  std::vector<std::string> axes;       // the axes of ReportCell::values, in order
  std::string baseline, same_loss_as;  // names or values of cells; empty: none
  std::vector<ReportCell> cells;
};

// Reads the runs of a report. Each path is one that find_runs() takes, or a file (.json, .jsonl)
// with results of `plan --json` or `search --json`, whose plans become predicted cells. `of_run`:
// keys of an experiment that are properties of the run alone. Throws Error (options) as find_runs
// does, if there is neither a sweep nor a readable run, and for a file of results without plans.
ReportRuns find_report_runs(const std::vector<std::filesystem::path>& paths,
                            const std::vector<std::string>& of_run = {});

// The JSON on each line of a file, as commands write it with --json. Throws Error (options,
// "file.format") for a line that is no JSON, because the file was probably cut off.
std::vector<Json> lines_of_json(const std::filesystem::path& path);

// Adds the value of a sweep's axis to a cell. The values of seed and repeat are removed from the
// cell's label instead, since they only tell repeats apart.
void take_value(ReportCell& cell, const std::string& key, const std::string& value);

// Sets the numbers of a cell from a result of `train`, for a run whose file is not read.
void take_run(ReportCell& cell, const Json& result);

// Sets whether a cell was compared, and its predictions, from a sweep's result for the cell.
void take_result(ReportCell& cell, const Json& result);

// The seconds of a predicted step, or of a stage's part of it, by cause: compute, exposed
// communication and copies, bubble. Their sum is the time of the step.
StepParts step_parts(const Json& prediction);

// Sets the predictions of a cell from a result of `plan`.
void take_prediction(ReportCell& cell, const Json& plan);

}  // namespace mw
