// Predicts a rank's memory in a step, and the times of schedules' works: walks the program's
// timeline with the rank's sizes, storage by storage, as the executor allocates and frees them.
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

// Predicted memory of a rank in a step, in bytes. `bytes` has the peak of each category: the
// constant bytes of parameters, gradients and optimizer state, and the highest of activations,
// buffers, scratch and host memory. `peak`: the highest sum, at most the sum of these peaks.
struct MemoryForecast {
  std::array<std::int64_t, category_count> bytes{};
  std::int64_t peak = 0;
  std::int64_t peak_without_scratch = 0;  // the highest sum of all categories but scratch
  bool measured = true;        // whether no kernel's scratch is an estimate (engine/scratch.h)
  std::int64_t estimated = 0;  // the most bytes of scratch at a time that are an estimate

  std::int64_t operator[](Category category) const {
    return bytes[static_cast<std::size_t>(category)];
  }
  std::int64_t& operator[](Category category) { return bytes[static_cast<std::size_t>(category)]; }
};

// The higher of the two forecasts, number by number.
MemoryForecast highest_of(const MemoryForecast& a, const MemoryForecast& b);

MemoryForecast forecast_memory(const RankView& rank);

// The highest peak of the ranks of these stages. `scratch`: see RankView.
std::int64_t highest_peak(std::span<const Program> stages, const DeviceScratch* scratch);

// Bytes that one microbatch holds after these segments have run one after the other.
std::int64_t bytes_left(const RankView& rank, const std::vector<int>& segments);

// Predicted bytes of one rank in one segment run of its timeline, without the constant categories:
// the highest during the run (of each category by itself; `sum`: the highest sum with scratch,
// which may be less than the sum of the peaks), and what is left after the run.
struct MemoryOfRun {
  std::int64_t activations = 0, buffers = 0, sum = 0;
  std::int64_t activations_after = 0, buffers_after = 0;
};

struct MemoryTimeline {
  MemoryForecast lasting;            // constant parameters, gradients, optimizer; the rest is 0
  std::vector<MemoryOfRun> moments;  // one for each entry of Program::timeline
};

// The highest `sum` plus the lasting bytes is forecast_memory()'s peak, unless memory is highest
// before the first run.
MemoryTimeline memory_timeline(const RankView& rank);

// The bytes that the rank holds after each instruction of its step, by category. The order is that
// of the timeline's runs, and of the code of each run's segment. Scratch is freed by then.
std::vector<std::array<std::int64_t, category_count>> memory_after_each(const RankView& rank);

// The storages that a microbatch holds between two of its segments, and their holders.
struct LiveSet {
  struct Storage {
    std::int64_t bytes = 0;
    int users = 0;  // holders of the storage; 0: it is freed
    Category category = Category::activations;
  };
  std::vector<Storage> storages;
  std::vector<int> slots;                      // index of each slot's storage; -1: none
  std::vector<std::pair<Holder, int>> others;  // storages of other holders: few at a time
};

// Bytes by category, relative to those at the start of a segment.
struct Level {
  std::int64_t activations = 0, buffers = 0, scratch = 0, host = 0;
};
struct Effect {
  Level after, highest;
  std::int64_t highest_sum = 0;              // highest sum of activations, buffers and scratch
  std::int64_t highest_without_scratch = 0;  // highest sum of activations and buffers
  bool measured = true;           // whether no op's scratch is an estimate (engine/scratch.h)
  std::int64_t estimated = 0;     // the most estimated bytes of scratch of one op
  std::vector<int> histories;     // number of the LiveSet of each microbatch afterwards
  int step = 0;                   // number of the set of shared storages left afterwards
  std::vector<Level> after_each;  // the level after each instruction, if asked for
};

// Walks `segment`, which must be no braid, from the storages `held` of its microbatch, and updates
// `held`. Does not set `histories` and `step`. `highest`: whether to compute peaks, not only what
// is left. `each`: whether to fill `after_each`.
Effect walk(const RankView& rank, LiveSet& held, const Segment& segment, bool highest = true,
            bool each = false);

// How long the works of each virtual stage take, for schedules, by the declared costs of its ops:
// seconds on a nominal device of 1e12 operations per second and 20 operations per byte of memory
// traffic. A schedule needs only the proportions of these times. They are the same on every
// machine, so that a plan is too.
std::vector<WorkTimes> work_times(const std::vector<Program>& programs);
// The times of one stage whose program has a whole backward, as if it were split into I and W.
WorkTimes work_times(const RankView& rank, const Segment& forward, const Segment& backward);

// Bytes of activations and buffers that a forward and a dgrad leave on the first rank of the stage,
// for each virtual stage. `programs`: as the planner builds them, before any pass.
std::vector<WorkBytes> work_bytes(const std::vector<Program>& programs);

}  // namespace mw
