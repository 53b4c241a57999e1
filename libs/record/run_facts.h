// What a run file says of its run as a whole: how it ended, its steps, its memory and its bytes,
// the measured beside the predicted.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/run_timing.h"
#include "record/account.h"
#include "record/rows.h"
#include "record/run_reader.h"

namespace mw {

// A number that was measured and predicted; bytes or seconds. NaN: not known.
struct MeasuredPair {
  double measured = not_known, predicted = not_known;
};

// Seconds of a step by activity: "compute", "exposed communication", "exposed host copies",
// "bubble" (waits for other stages), "other".
using StepParts = std::map<std::string, double>;

// The seconds of the median step after the warm-up (of the steps that had the cores to themselves,
// where there are enough), its tokens a second, and its MFU. NaN: not known.
struct RunSpeed {
  double step_seconds = not_known, tokens_per_second = not_known, mfu = not_known;
};
// `steps`: all steps of the run, those of the warm-up too.
RunSpeed speed_of(const std::vector<StepRow>& steps, const RunTiming& timing);

struct RunFacts {
  RunHead head;
  Json experiment, predicted_result, result;  // as RunReader has them: null if missing
  std::vector<StepRow> steps;
  MeasuredPair peak;  // peak bytes of the rank with the most
  // peak bytes of each category, on the rank with the most
  std::map<std::string, MeasuredPair> memory;
  // Bytes sent in the last step, by axis: the sum over ops and phases of the bytes of the rank that
  // sends most.
  std::map<std::string, MeasuredPair> bytes;
  // Measured as in RunSpeed; predicted: the end of the predicted timeline.
  MeasuredPair step_seconds;
  double tokens_per_second = not_known, mfu = not_known, bubble = not_known;
  std::int64_t median_step = -1;  // step nearest to the median seconds; -1: no steps
  int ranks = 0;
  std::vector<ActionRow> actions;    // actions of `median_step`
  std::vector<ActionRow> predicted;  // predicted actions of one step
  // The parts of each stage in the traced step nearest to the median one. Empty: none was traced.
  std::map<int, StepParts> parts;
  std::optional<Account> account;  // account of a step; empty: none was taken
  // The metrics of `observe` and of the run itself under /series, by name: pairs of step and value.
  std::map<std::string, std::vector<std::pair<std::int64_t, double>>> series;
};

// Reads the parts of a traced step by stage, as means over the stage's ranks. The parts of a stage
// add up to the step, or to more: ranks begin a step one after the other, and the first wait for
// the last.
std::map<int, StepParts> read_step_parts(RunReader& reader, const StepRow& step);

// The parts of a step on average over its stages.
StepParts mean_parts(const std::map<int, StepParts>& stages);

// Reads a run file. `actions`: whether the timelines are read too. Throws Error (options) if there
// is no such file or it is no run file, Error (run) if it cannot be read.
RunFacts read_run_facts(const std::filesystem::path& path, bool actions);

}  // namespace mw
