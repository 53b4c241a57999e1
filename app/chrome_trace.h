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
  // In the order of their starts. Works of a group overlap, each in a lane of its own.
  std::vector<TimedAction> actions;
};

// An op, a wait or a transfer in a lane of its own kind below a rank's row.
struct TraceSlice {
  std::string name, kind;  // kind: the category, which viewers can search
  double start = 0, end = 0;
  Json about;  // further arguments of the event
};
struct TraceLane {
  std::string name;  // "ops", "dp"
  int rank = 0;
  std::vector<TraceSlice> slices;  // may overlap: more lanes are drawn then
};

// The memory of a rank at one moment.
struct TraceCounter {
  int rank = 0;
  double time = 0;
  Json values;  // bytes by category
};

struct TraceProcess {
  std::string name;
  std::vector<TraceRow> rows;  // in the order of their ranks
  std::vector<TraceLane> lanes = {};
  std::vector<TraceCounter> counters = {};
};

// A process for each timeline, a thread row for each of its rows, and one more for each further
// lane of groups of works. Works and receives are complete events; a flow leads from an F to the
// same microbatch's F on the next virtual stage, and from a B or I to that of the virtual stage
// before, where the two lie on different rows. The i-th row of a stage sends to the i-th row of
// another. Lanes stand below the row of their rank, in the order given; a counter for each rank
// shows its memory. Times are whole nanoseconds, written as microseconds; the events are sorted by
// time. `about` goes into "otherData".
std::string chrome_trace(const std::vector<TraceProcess>& processes, const Json& about);

}  // namespace mw
