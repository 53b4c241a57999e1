// What a report is about: the runs that files and folders name, each a cell with its numbers, and
// what the sweep was that they are of.
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

// One run, done or not. NaN: not known.
struct ReportCell {
  std::string name, status, reason, seed, hash, mix;
  std::string label;     // the name without the seed's value and the repeat's; of a sweep's cells
  std::string sweep;     // its name; empty: of none
  std::string file;      // the run file, or its folder
  AxisValues values;     // of the sweep's axes, the seed's apart
  std::string settings;  // JSON: the experiment but its seed and what is of the run alone
  // Equal for repeats: RunHead::hash_without_seed, or of files of earlier versions `settings`.
  std::string repeats;
  std::vector<std::pair<std::string, std::string>> work;  // work_of()
  int ranks = 0;
  double seconds = not_known;  // that the cell took, its process' start included
  std::int64_t steps = 0;
  double loss = not_known, held_out = not_known;  // the last ones; nats a token
  MeasuredPair step_seconds, tokens_per_second, peak;
  double mfu = not_known, bubble = not_known;         // 0..1
  std::map<std::string, MeasuredPair> memory, bytes;  // as RunFacts has them
  std::vector<std::pair<std::int64_t, double>> losses;
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> series;
  std::vector<std::pair<std::string, std::string>> machine;  // host, CPU, versions: name and text

  // Whether its losses were held to another cell's, where that was asked for.
  std::optional<bool> compared;
  std::string held_to;    // the cell or value whose loss its sweep holds all others to; empty: none
  bool fits = true;       // in memory, as predicted
  double step_error = 0;  // of predictions of steps on the machine, on average, as a share
  RunTiming timing;       // with what else used the cores, which earlier versions did not record
  double flops = 0;       // predicted, with what is computed twice; 0: not known
  Parting parting;        // of the measured step from the predicted one
  // Seconds of the predicted step of a run, as step_parts() has them.
  StepParts predicted_parts;
  std::map<int, StepParts> predicted_stage_parts;
  std::map<int, std::map<std::string, double>> stage_memory;  // predicted bytes, by category
  std::map<int, StepParts> parts;  // of each stage in a traced step; empty: none was traced
  std::optional<Account> account;  // of a step; empty: none was taken
  int beside = 0;                  // the most cells that ran at the same time

  bool done() const { return status == "done"; }
  bool measured() const { return steps > 0; }
};

struct ReportRuns {
  std::string name;  // the sweep's; of runs by themselves empty
  std::vector<std::pair<std::string, std::string>> asked;  // what was asked for, for people
  std::vector<std::string> axes;       // whose values `values` has, in this order
  std::string baseline, same_loss_as;  // names or values; empty: none
  std::vector<ReportCell> cells;
};

// Each path is what record/run_set.h takes, or a file (.json, .jsonl) with the lines that plan or
// search wrote with --json, whose plans are cells that were predicted. `of_run`: keys of an
// experiment that tell no experiments apart. Throws Error (options): see find_runs; if there is no
// sweep and no run that can be read; and for a file of results that holds no plan.
ReportRuns find_report_runs(const std::vector<std::filesystem::path>& paths,
                            const std::vector<std::string>& of_run = {});

// The JSON on each line of a file, as commands write it with --json. Throws Error (options,
// "file.format") for a line that holds none: a file that was cut off lacks more than it shows.
std::vector<Json> lines_of_json(const std::filesystem::path& path);

// Takes the value of an axis. That of the seed, or of the repeat, tells repeats of a mix alone.
void take_value(ReportCell& cell, const std::string& key, const std::string& value);

// Takes what a result of `train` says of a run whose file is not read.
void take_run(ReportCell& cell, const Json& result);

// Takes what a sweep says of its cell: what it was compared with, and what is predicted of it.
void take_result(ReportCell& cell, const Json& result);

// Seconds of a predicted step, or of a stage's part in it, by what takes them: compute, exposed
// communication and copies, bubble. Of a step they add up to it.
StepParts step_parts(const Json& prediction);

// Takes what `plan` says of an experiment, which was predicted and not run.
void take_prediction(ReportCell& cell, const Json& plan);

}  // namespace mw
