// Predicted memory of one rank over its step, run by run of its program's timeline.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "meshwright/engine/memory.h"

namespace mw {

// Bytes of what comes and goes, beside what lasts: while a segment runs, at most (each category by
// itself, and their sum, which may be less than theirs), and after it.
struct MemoryOfRun {
  std::int64_t activations = 0, buffers = 0, sum = 0;
  std::int64_t activations_after = 0, buffers_after = 0;
};

struct MemoryTimeline {
  MemoryForecast lasting;            // parameters, gradients, optimizer; the rest is 0
  std::vector<MemoryOfRun> moments;  // one for each entry of Program::timeline
};

// The highest `sum` beside what lasts is forecast_memory()'s peak, unless memory is highest before
// the first run.
MemoryTimeline memory_timeline(const RankView& rank);

// What the rank holds after each instruction of its step, by category: run by run of the timeline,
// each run's in the order of its segment's code. Scratch that an instruction lets go of is in none.
std::vector<std::array<std::int64_t, category_count>> memory_after_each(const RankView& rank);

}  // namespace mw
