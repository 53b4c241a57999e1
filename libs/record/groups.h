// Groups the cells of a report that differ only in their seed: a group is one mix, with the mean
// and the spread of its runs. Finds the fastest group that is right.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ranking.h"
#include "common/statistics.h"
#include "record/cells.h"

namespace mw {

enum class GroupVerdict {
  right,       // every cell is done, and passed the comparison of losses, if the sweep has one
  unproven,    // every cell is done, but the loss of one was not compared
  failed,      // a cell failed, so the mix does not count as right
  unfinished,  // a cell is queued, running or interrupted
  predicted,   // nothing was run
  left_out,    // skipped, refused, or predicted not to fit in memory
};
const char* name_of(GroupVerdict verdict);

struct ReportGroup {
  std::string name;
  std::string own_name;            // the name before it was made unique among groups
  AxisValues values;               // ReportCell::values
  std::vector<std::size_t> cells;  // indices of the cells
  GroupVerdict verdict = GroupVerdict::left_out;
  // Means over the runs that are done; numbers that depend on times, only over counted_runs().
  MeanAndDeviation tokens_per_second, step_seconds, mfu, bubble;
  MeanAndDeviation peak, loss, held_out;
  std::map<std::string, MeanAndDeviation> memory, bytes;
  MeanAndDeviation predicted_tokens, predicted_step, predicted_peak;
  double step_error = 0;  // the largest ReportCell::step_error
  std::map<std::string, MeanAndDeviation> predicted_memory, predicted_bytes;
  int baseline = -1;         // the group with which it is compared; -1: none
  double delta = not_known;  // tokens/s against the baseline: 0.1 is 10 % more
  // Whether no right group of the same work is faster with as little memory. Measured and predicted
  // groups are judged separately.
  bool on_edge = false;
  bool fastest = false;       // whether it is the fastest of several groups of its work
  bool contends = false;      // whether it may be the fastest, in an undecided race
  Interval interval;          // 95 % interval of the seconds of a step
  double others = not_known;  // mean number of cores that other programs used
  int ran = 0;                // runs that are done
  int disturbed = 0;          // of these, runs with too few steps without disturbance
  int unknown = 0;            // of these, runs for which disturbances were not recorded
  std::string parting;        // text of ReportCell::parting that is largest among its runs
  std::string sweep;          // ReportCell::sweep
  std::vector<std::pair<std::string, std::string>> work;  // only groups of equal work are compared

  // Whether the group is compared by its predictions, because nothing of it was run. False for a
  // group that was run and failed.
  bool only_predicted() const {
    return verdict == GroupVerdict::predicted || verdict == GroupVerdict::left_out;
  }
  // Tokens per second, by which groups are ranked: measured, or predicted if nothing was run.
  double speed() const { return only_predicted() ? predicted_tokens.mean : tokens_per_second.mean; }
  const MeanAndDeviation& memory_peak() const { return only_predicted() ? predicted_peak : peak; }
  // Half of the 95 % interval of the speed, as a share of the speed; NaN if there is no useful one.
  double half() const { return interval.half(); }
  double memory_needed() const { return memory_peak().mean; }
};

// The groups of the same work whose speed is known. Tokens per second of different work cannot be
// compared. Groups are given by their indices.
struct WorkRace {
  std::string name;            // values that only these groups have; empty: none
  std::vector<int> groups;     // in order
  int fastest = -1;            // the fastest right (or predicted) group; -1: undecided, or only one
  bool by_cpu = false;         // whether CPU seconds decided
  std::vector<int> undecided;  // the groups that may be the fastest, if no group is
  std::vector<std::pair<int, int>> impossible;  // Ranking::impossible
  std::string verdict;  // verdict_text() of the ranking; for predictions, a text with the fastest
};

struct ReportGroups {
  std::vector<ReportGroup> groups;  // in the order of their first cells
  std::vector<int> of_cell;         // the group of each cell
  bool predicted = false;           // whether nothing was run, so that all speeds are predictions
  std::vector<WorkRace> races;
  int fastest = -1;      // WorkRace::fastest of the only race; -1: none, or several races
  std::string headline;  // a sentence with the fastest mix and its numbers

  // The verdicts of all races, one per line; with several races, each with its name in front.
  std::string answer() const;
  // The answer as { fastest, predicted, by, undecided, impossible, answer, kinds = { { name, mixes,
  // fastest, by, undecided } }, speeds }. `fastest`, `by` and `undecided` are those of the only
  // race; null, null and empty if there are several. `numbers`: writes the fastest mix as { name,
  // tokens_per_second, half, predicted, delta } instead of its name.
  Json answer_json(bool numbers) const;
};

// The run that shows how the group's steps spend their time: the first run with a traced step, else
// the first measured run. Null: no run was measured.
const ReportCell* cell_with_parts(const ReportGroup& group, const std::vector<ReportCell>& cells);

// Groups of repeats, as lists of indices of cells, in the order of their first cells. Repeats are
// cells of one sweep, or of no sweep, that differ only in the seed. Cells without a plan are
// grouped by their values.
std::vector<std::vector<std::size_t>> repeats_of(const std::vector<ReportCell>& cells);

// The speed as text, with half of its interval if it was measured: "1,212 tokens/s ± 30" for the
// unit " tokens/s"; "± ?" if there are too few runs for an interval.
std::string speed_text(const ReportGroup& group, std::string (*number)(double),
                       const char* unit = "");

// Groups the cells of a report, and compares and ranks the groups.
ReportGroups group_cells(const ReportRuns& runs);

}  // namespace mw
