// What one rank is predicted to hold, to send and to compute in a step: its program's timeline
// walked with the rank's sizes, storage by storage, as the executor allocates and releases them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"
#include "meshwright/schedule.h"

namespace mw {

// Parameters, gradients and optimizer state are constant; activations, buffers and scratch come and
// go, and here is their highest (and of host memory, with what is constant there). `peak`: the
// highest of the sum, at most the sum of the categories.
struct MemoryForecast {
  std::array<std::int64_t, category_count> bytes{};
  std::int64_t peak = 0;
  std::int64_t peak_without_scratch = 0;  // of the sum of all but scratch
  bool measured = true;  // of kernels' scratch: all of it was tried on this machine, none estimated
  std::int64_t estimated = 0;  // bytes of it that are an estimate, at most at a time

  std::int64_t operator[](Category category) const {
    return bytes[static_cast<std::size_t>(category)];
  }
  std::int64_t& operator[](Category category) { return bytes[static_cast<std::size_t>(category)]; }
};

// The higher of each.
MemoryForecast highest_of(const MemoryForecast& a, const MemoryForecast& b);

MemoryForecast forecast_memory(const RankView& rank);

// The highest peak of the ranks of these stages. `scratch`: see RankView.
std::int64_t highest_peak(std::span<const Program> stages, const DeviceScratch* scratch);

// Bytes that one microbatch holds after these segments have run one after the other.
std::int64_t bytes_left(const RankView& rank, const std::vector<int>& segments);

// Predicted memory of one rank in one run of its program's timeline: bytes of what comes and goes,
// beside what lasts: while a segment runs, at most (each category by itself, and their sum with
// scratch, which may be less than theirs), and after it.
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

// What a microbatch holds between two of its segments: who holds which storage.
struct LiveSet {
  struct Storage {
    std::int64_t bytes = 0;
    int users = 0;
    Category category = Category::activations;
  };
  std::vector<Storage> storages;
  std::vector<int> slots;                      // -1: none
  std::vector<std::pair<Holder, int>> others;  // that are no slots: few at a time
};

// Bytes beside what lay there before.
struct Level {
  std::int64_t activations = 0, buffers = 0, scratch = 0, host = 0;
};
struct Effect {
  Level after, highest;
  std::int64_t highest_sum = 0;              // of activations, buffers and scratch
  std::int64_t highest_without_scratch = 0;  // of activations and buffers
  bool measured = true;           // every op's scratch was tried on this machine, none estimated
  std::int64_t estimated = 0;     // the most of an op that was estimated
  std::vector<int> histories;     // what is there then, of each lane's microbatch
  int step = 0;                   // and of the step
  std::vector<Level> after_each;  // instruction, where it was asked for
};

// Runs `segment`, which is no braid, with what the microbatch holds, which it brings up to date.
// `histories` and `step` are left alone. Without `highest`, only what it leaves is worked out.
// `each`: after_each too.
Effect walk(const RankView& rank, LiveSet& held, const Segment& segment, bool highest = true,
            bool each = false);

// How long each virtual stage's works take, for schedules: seconds on a nominal device of 1e12
// operations a second (20 in the time of one byte of memory traffic), from its ops' own costs. They
// are right in proportion, which is all that a schedule needs, and the same on every machine, so
// that a plan is.
std::vector<WorkTimes> work_times(const std::vector<Program>& programs);
// The same of one stage whose backward is whole: what it would be in parts.
WorkTimes work_times(const RankView& rank, const Segment& forward, const Segment& backward);

// Bytes of activations and buffers that a forward and a dgrad leave on the first rank of the stage.
// `programs` are those that build() made.
std::vector<WorkBytes> work_bytes(const std::vector<Program>& programs);

}  // namespace mw
