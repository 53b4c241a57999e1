// What the page draws over time: steps as rows of bars, which are works of a rank or a stage, and
// curves with fewer points, in which no spike is lost.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/schedule.h"
#include "record/rows.h"

namespace mw {

// The rows of a timeline: the name of each, and its works.
using TimelineRows = std::vector<std::pair<std::string, std::vector<ActionRow>>>;

// Simulated works as a run file has measured ones.
std::vector<ActionRow> action_rows(const std::vector<TimedAction>& works);

// { rows: [name], kinds: [name], bars: [[row, kind, label, start, end]] }, in milliseconds; row and
// kind are indices. At most `most_rows` rows; { left_out = n } where there are more.
Json timeline_json(const TimelineRows& rows, std::size_t most_rows = 32);

// All rows, compact, for a page that draws some of them at a time: { rows, kinds, unit, packed,
// at_once }. For each row `packed` has four whole numbers of each bar: kind, microbatch (-1: none)
// plus chunk * 2^16, the gap after the bar before, and its length, these in units of `unit`
// milliseconds. `at_once`: rows that are drawn together. { left_out = n } where there are more.
Json packed_timeline(const TimelineRows& rows);

// A run file's timeline: { step, seconds, measured, simulated }, the last two by timeline_json() or
// null; null if it has neither. Never throws: a file that cannot be read has no timeline.
Json timeline_of_run(const std::string& run_file);

using Curve = std::vector<std::pair<std::int64_t, double>>;  // step and value

// At most `most` (4 or more) of the curve's own points: the first, the last, and the lowest and the
// highest of each stretch between. Values that are not finite count as points, the first of a
// stretch stands for those beside it.
Curve thinned(const Curve& curve, std::size_t most);

}  // namespace mw
