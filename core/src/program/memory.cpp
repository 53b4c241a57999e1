// Predicts a rank's memory over a whole step by walking its timeline; runs with the same past
// are walked once.
#include "meshwright/engine/memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/memory_timeline.h"
#include "meshwright/engine/memory_walk.h"

namespace mw {
namespace {

// Segments do the same for every microbatch with the same past, so each is walked once for each.
class Timeline {
 public:
  explicit Timeline(const RankView& rank, bool each = false)
      : rank_(rank), ranks_(rank), each_(each), histories_(1) {
    const std::vector<Slot>& slots = rank.program().slots;
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
      if (slots[slot].persistent && slots[slot].transient && slots[slot].alias_of < 0)
        shared_.push_back(static_cast<int>(slot));
    }
    steps_.emplace(Shared(), 0);
  }

  // `moments`: if given, gets one for each run of the timeline.
  void run(std::vector<MemoryOfRun>* moments = nullptr) {
    std::map<int, int> history;  // of each microbatch
    Level level;
    level.buffers = rank_.bytes(rank_.program().loss);
    const auto& buckets = rank_.program().buckets;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].hook) level.buffers += rank_.reduction(static_cast<int>(b)).kept;
    }
    highest_ = level;
    sum_ = level.buffers;
    for (const SegmentRun& action : rank_.program().timeline) {
      throw_if_stopped();
      const Effect& effect =
          of(action.segment, history[action.microbatch], ranks_.kind(action.microbatch));
      highest_.activations =
          std::max(highest_.activations, level.activations + effect.highest.activations);
      highest_.buffers = std::max(highest_.buffers, level.buffers + effect.highest.buffers);
      highest_.host = std::max(highest_.host, level.host + effect.highest.host);
      measured_ = measured_ && effect.measured;
      sum_ = std::max(sum_, level.activations + level.buffers + effect.highest_sum);
      if (moments != nullptr) {
        moments->push_back(
            {level.activations + effect.highest.activations, level.buffers + effect.highest.buffers,
             level.activations + level.buffers + effect.highest_sum,
             level.activations + effect.after.activations, level.buffers + effect.after.buffers});
      }
      for (const Level& after : effect.after_each) {
        after_each_.push_back({level.activations + after.activations, level.buffers + after.buffers,
                               level.host + after.host});
      }
      level.activations += effect.after.activations;
      level.buffers += effect.after.buffers;
      level.host += effect.after.host;
      history[action.microbatch] = effect.history;
      step_ = effect.step;
    }
  }

  Level highest() const { return highest_; }
  std::int64_t highest_sum() const { return sum_; }
  bool measured() const { return measured_; }
  const std::vector<Level>& after_each() const { return after_each_; }

 private:
  // What all microbatches share and is there between two runs, such as gradients that several of
  // them add to: bytes and category of each slot.
  using Shared = std::map<int, std::pair<std::int64_t, Category>>;

  const Effect& of(int segment, int history, int kind) {
    const auto [found, missing] = effects_.try_emplace({segment, history, step_, kind});
    if (missing) {
      LiveSet held = histories_[history];
      for (const auto& [shared, id] : steps_) {
        if (id == step_) bring(shared, held);
      }
      Effect effect =
          walk(ranks_.of_kind(kind), held, rank_.program().segments[segment], true, each_);
      effect.step = steps_.try_emplace(take(held), static_cast<int>(steps_.size())).first->second;
      effect.history = static_cast<int>(histories_.size());
      histories_.push_back(std::move(held));
      found->second = effect;
    }
    return found->second;
  }

  static void bring(const Shared& shared, LiveSet& held) {
    for (const auto& [slot, storage] : shared) {
      if (held.slots.size() <= static_cast<std::size_t>(slot)) held.slots.resize(slot + 1, -1);
      held.slots[slot] = static_cast<int>(held.storages.size());
      held.storages.push_back({storage.first, 1, storage.second});
    }
  }

  Shared take(LiveSet& held) const {
    Shared shared;
    for (const int slot : shared_) {
      int& lies = held.slots[slot];
      if (lies < 0 || held.storages[lies].users != 1) continue;
      shared[slot] = {held.storages[lies].bytes, held.storages[lies].category};
      held.storages[lies].users = 0;
      lies = -1;
    }
    return shared;
  }

  const RankView& rank_;
  const RankViews ranks_;
  const bool each_;
  std::vector<int> shared_;  // slots that come and go in a step and belong to no microbatch
  std::map<Shared, int> steps_;
  int step_ = 0;
  std::vector<LiveSet> histories_;
  std::map<std::tuple<int, int, int, int>, Effect> effects_;  // by segment, history, step, kind
  Level highest_;
  std::vector<Level> after_each_;
  std::int64_t sum_ = 0;
  bool measured_ = true;
};

}  // namespace

MemoryForecast highest_of(const MemoryForecast& a, const MemoryForecast& b) {
  MemoryForecast highest = a;
  for (std::size_t c = 0; c < highest.bytes.size(); ++c)
    highest.bytes[c] = std::max(a.bytes[c], b.bytes[c]);
  highest.peak = std::max(a.peak, b.peak);
  highest.measured = a.measured && b.measured;
  return highest;
}

namespace {

// What lasts: parameters, gradients, optimizer state, and what of them lies in host memory.
MemoryForecast lasting(const RankView& rank) {
  const Program& program = rank.program();
  MemoryForecast forecast;
  for (std::size_t k = 0; k < program.slots.size(); ++k) {
    const Slot& slot = program.slots[k];
    if (!slot.persistent || slot.transient || slot.alias_of >= 0 || slot.bucket < 0) continue;
    forecast[slot.memory == Memory::host ? Category::host : slot.category] +=
        rank.bytes(static_cast<int>(k));
  }
  forecast.peak = forecast[Category::parameters] + forecast[Category::gradients] +
                  forecast[Category::optimizer];
  return forecast;
}

}  // namespace

MemoryTimeline memory_timeline(const RankView& rank) {
  MemoryTimeline line;
  line.lasting = lasting(rank);
  Timeline timeline(rank);
  timeline.run(&line.moments);
  return line;
}

std::vector<std::array<std::int64_t, category_count>> memory_after_each(const RankView& rank) {
  const MemoryForecast lasts = lasting(rank);
  Timeline timeline(rank, /*each=*/true);
  timeline.run();
  std::vector<std::array<std::int64_t, category_count>> held;
  held.reserve(timeline.after_each().size());
  for (const Level& level : timeline.after_each()) {
    MemoryForecast now = lasts;
    now[Category::activations] = level.activations;
    now[Category::buffers] = level.buffers;
    now[Category::host] += level.host;
    held.push_back(now.bytes);
  }
  return held;
}

MemoryForecast forecast_memory(const RankView& rank) {
  MemoryForecast forecast = lasting(rank);
  Timeline timeline(rank);
  timeline.run();
  forecast[Category::activations] = timeline.highest().activations;
  forecast[Category::buffers] = timeline.highest().buffers;
  forecast[Category::host] += timeline.highest().host;
  forecast.peak += timeline.highest_sum();
  forecast.measured = timeline.measured();
  return forecast;
}

std::int64_t highest_peak(const std::vector<Program>& stages, const DeviceScratch* scratch) {
  std::int64_t peak = 0;
  for (const Program& program : stages) {
    for (const RankClass& kind : rank_classes(program)) {
      peak = std::max(peak, forecast_memory(RankView(program, kind.at, 0, scratch)).peak);
    }
  }
  return peak;
}

std::int64_t bytes_left(const RankView& rank, const std::vector<int>& segments) {
  LiveSet held;
  std::int64_t bytes = 0;
  for (int segment : segments) {
    const Effect effect = walk(rank, held, rank.program().segments[segment], false);
    bytes += effect.after.activations + effect.after.buffers;
  }
  return bytes;
}

}  // namespace mw
