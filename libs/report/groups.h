// Cells that differ in their seed alone are one row of a report: a mix under a policy, with the
// mean over its runs and their spread. Says which row is the fastest that is right.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ranking.h"
#include "common/statistics.h"
#include "report/cells.h"

namespace mw {

enum class GroupVerdict {
  right,       // every cell was done, and where losses were held to another's, they passed
  unproven,    // every cell was done, but the loss of one was held to nothing
  failed,      // a cell failed: its mix is not right, however fast it is
  unfinished,  // a cell is queued, running or was interrupted
  predicted,   // nothing was run
  left_out,    // skipped, refused, or predicted not to fit in memory
};
const char* name_of(GroupVerdict verdict);

struct ReportGroup {
  std::string name;
  std::string own_name;            // the name without what tells it from others of that name
  AxisValues values;               // as ReportCell has them
  std::vector<std::size_t> cells;  // indices
  GroupVerdict verdict = GroupVerdict::left_out;
  // Over the runs that were done; what follows from times over those of them that count for speeds.
  MeanAndDeviation tokens_per_second, step_seconds, mfu, bubble;
  MeanAndDeviation peak, loss, held_out;
  std::map<std::string, MeanAndDeviation> memory, bytes;
  MeanAndDeviation predicted_tokens, predicted_step, predicted_peak;
  double step_error = 0;  // as ReportCell has it
  std::map<std::string, MeanAndDeviation> predicted_memory, predicted_bytes;
  int baseline = -1;          // the group that it is compared with; -1: none
  double delta = not_known;   // of tokens a second: 0.1 is 10 % more than the baseline's
  bool on_edge = false;       // no right group of its work is faster with as little memory;
                              // measured groups and predicted ones are judged apart
  bool fastest = false;       // it is the fastest of its work, where there are others
  bool contends = false;      // it may be the fastest: no other one of its work is sure to beat it
  Interval interval;          // seconds of a step, 95 %
  double others = not_known;  // cores that other programs had, on average
  int ran = 0;                // runs that are done
  int disturbed = 0;          // those of them in which too few steps had the cores to themselves
  int unknown = 0;            // those of which nobody knows whether they had
  std::string parting;        // why the run whose step parts most from the predicted one does
  std::string sweep;          // as ReportCell has it
  std::vector<std::pair<std::string, std::string>> work;  // likewise; only equals are compared

  // Whether the group is compared by predictions, as nothing of it was run. A mix that was run and
  // failed is not.
  bool only_predicted() const {
    return verdict == GroupVerdict::predicted || verdict == GroupVerdict::left_out;
  }
  // What it is ranked by: measured, or predicted where nothing was run.
  double speed() const { return only_predicted() ? predicted_tokens.mean : tokens_per_second.mean; }
  const MeanAndDeviation& memory_peak() const { return only_predicted() ? predicted_peak : peak; }
  // Half of the 95 % interval of its speed, as a share of it; NaN where there is none that tells.
  double half() const { return interval.half(); }
  double memory_needed() const { return memory_peak().mean; }
};

// The mixes whose work is the same and whose speed is known: tokens a second of other work say
// nothing about theirs. All mixes here are indices into the groups.
struct WorkRace {
  std::string name;            // the values that only these have; empty: there are none
  std::vector<int> groups;     // in their order
  int fastest = -1;            // of the right (or predicted) ones; -1: undecided, or less than two
  bool by_cpu = false;         // CPU seconds decided
  std::vector<int> undecided;  // the mixes that may be it, where none is
  std::vector<std::pair<int, int>> impossible;  // as Ranking has them
  std::string verdict;  // verdict_text() of its ranking; of predictions, which is the fastest
};

struct ReportGroups {
  std::vector<ReportGroup> groups;  // in the order of their first cells
  std::vector<int> of_cell;
  bool predicted = false;  // nothing was run: all speeds are predictions
  std::vector<WorkRace> races;
  int fastest = -1;      // of the only race; -1: none, or there are several races
  std::string headline;  // who is fastest, with its numbers, in a sentence

  // The verdict of each race of two mixes, a line each; of several with their names in front.
  std::string answer() const;
  // { fastest, predicted, by, undecided, impossible, answer, kinds = { { name, mixes, fastest, by,
  // undecided } }, speeds }: `predicted` as above; `fastest`, `by` and `undecided` are those of the
  // only race, or null and none. `numbers`: mixes that are the fastest come with their speed, as
  // { name, tokens_per_second, half, predicted, delta }.
  Json answer_json(bool numbers) const;
};

// The run that says what the time of a step of the group went to: the first run that traced a step,
// else the first that was measured. Null: none was measured.
const ReportCell* cell_with_parts(const ReportGroup& group, const std::vector<ReportCell>& cells);

// Repeats, as indices in the order of the first: cells of one sweep, or of none, that compute the
// same but for the seed. What is not planned goes by its values.
std::vector<std::vector<std::size_t>> repeats_of(const std::vector<ReportCell>& cells);

// The speed and half of its interval, where it was measured: "1,212 tokens/s ± 30", with
// " tokens/s" as the unit; "± ?" where the interval tells nothing.
std::string speed_text(const ReportGroup& group, std::string (*number)(double),
                       const char* unit = "");

ReportGroups group_cells(const ReportRuns& runs);

}  // namespace mw
