// Steps as rows of bars: a rank's, or a stage's, works in time. What the page's timelines draw.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/schedule.h"
#include "record/rows.h"

namespace mw {

// { rows: [name], kinds: [name], bars: [[row, kind, label, start, end]] }, in milliseconds; row and
// kind are indices. At most `most_rows` rows; { left_out = n } where there are more.
Json timeline_json(const std::vector<std::pair<std::string, std::vector<ActionRow>>>& rows,
                   std::size_t most_rows = 32);

// A run file's timeline: { step, seconds, measured, simulated }, the last two as above or null;
// null if it has neither. Never throws: a file that cannot be read has no timeline.
Json timeline_of_run(const std::string& run_file);

}  // namespace mw
