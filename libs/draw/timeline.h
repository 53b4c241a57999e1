// Data that pages draw over time: timelines of steps, with a row of bars for the actions of each
// rank or stage, and curves that are thinned without losing spikes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/schedule.h"
#include "record/rows.h"

namespace mw {

// The rows of a timeline: the name and the actions of each row.
using TimelineRows = std::vector<std::pair<std::string, std::vector<ActionRow>>>;

// Converts simulated actions to the form of measured ones in a run file.
std::vector<ActionRow> action_rows(const std::vector<TimedAction>& works);

// A timeline as { rows: [name], kinds: [name], bars: [[row, kind, label, start, end]] }, in
// milliseconds; row and kind are indices. At most `most_rows` rows; `left_out` is the number of
// further rows.
Json timeline_json(const TimelineRows& rows, std::size_t most_rows = 32);

// A timeline in a compact form, for a page that draws some rows at a time: { rows, kinds, unit,
// packed, at_once }. For each row, `packed` has four integers for each bar: kind; microbatch (-1:
// none) plus chunk * 2^16; the gap after the bar before; the length. The last two are in units of
// `unit` milliseconds. `at_once`: number of rows to draw together. `left_out`: number of rows that
// did not fit.
Json packed_timeline(const TimelineRows& rows);

// A run file's timelines: { step, seconds, measured, simulated }, the last two by timeline_json()
// or null. Null if there is neither. Never throws: a file that cannot be read has no timeline.
Json timeline_of_run(const std::string& run_file);

using Curve = std::vector<std::pair<std::int64_t, double>>;  // step and value

// Thins a curve to at most `most` (4 or more) of its own points: the first and the last, and the
// lowest and the highest of each interval between. Of the values in an interval that are not
// finite, the first is kept too.
Curve thinned(const Curve& curve, std::size_t most);

}  // namespace mw
