// Timelines in the Trace Event Format (JSON), which Perfetto and chrome://tracing open.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/schedule.h"

namespace mw {

struct TraceRow {
  std::string name;  // "rank 0, stage 0"
  int rank = 0, stage = 0;
  std::vector<TimedAction> actions;  // in the order of their starts, none beside another
};

struct TraceProcess {
  std::string name;
  std::vector<TraceRow> rows;  // in the order of their ranks
};

// A process for each timeline, a thread row for each of its rows. Works and receives are complete
// events; a flow leads from an F to the same microbatch's F on the next virtual stage, and from a B
// or I to that of the virtual stage before, where the two lie on different rows. The i-th row of a
// stage sends to the i-th row of another. Times are whole nanoseconds, written as microseconds; the
// events are sorted by time. `about` goes into "otherData".
std::string chrome_trace(const std::vector<TraceProcess>& processes, const Json& about);

}  // namespace mw
