// What a schedule is to know of each virtual stage's works: relative times, and activation memory.
#pragma once

#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/program.h"
#include "meshwright/schedule.h"

namespace mw {

// Of each virtual stage, from its ops' own costs on a nominal device (20 floating-point operations
// in the time of one byte of memory traffic): right in proportion, which is all that a schedule
// needs, and the same on every machine, so that a plan is.
// Seconds on a device of 1e12 operations a second.
std::vector<WorkTimes> work_times(const std::vector<Program>& programs);
// The same of one stage whose backward is whole: what it would be in parts.
WorkTimes work_times(const RankView& rank, const Segment& forward, const Segment& backward);

// Bytes of activations and buffers that a forward and a dgrad leave on the first rank of the stage.
// `programs` are those that build() made.
std::vector<WorkBytes> work_bytes(const std::vector<Program>& programs);

}  // namespace mw
