// Predicts a rank's memory over a whole step by walking its timeline; runs with the same past
// are walked once.
#include "meshwright/engine/forecast.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/stage_balance.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

// One lane of a segment: the rank's sizes for its microbatch, and what that holds.
struct LaneMemory {
  const RankView* rank = nullptr;
  LiveSet* held = nullptr;
};
Effect walk_lanes(const std::vector<LaneMemory>& lanes, const Segment& segment, bool highest,
                  bool each);

// Walks the timeline. A segment does the same for every microbatch with the same past, so it is
// walked once for each such past.
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
    std::map<int, int> history;  // by microbatch: index in histories_
    Level level;
    level.buffers = rank_.bytes(rank_.program().loss);
    const auto& buckets = rank_.program().buckets;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      if (buckets[b].hook) level.buffers += rank_.reduction(static_cast<int>(b)).kept;
    }
    highest_ = level;
    sum_ = without_scratch_ = level.buffers;
    for (const SegmentRun& action : rank_.program().timeline) {
      throw_if_stopped();
      Runs runs;
      for (int lane = 0; lane < lanes_of(action); ++lane) {
        const int microbatch = microbatch_of(action, lane);
        const int known = runs.add(microbatch);
        if (known == static_cast<int>(runs.past.size()))
          runs.past.push_back({history[microbatch], ranks_.kind(microbatch)});
      }
      const Effect& effect = of(action.segment, runs);
      highest_.activations =
          std::max(highest_.activations, level.activations + effect.highest.activations);
      highest_.buffers = std::max(highest_.buffers, level.buffers + effect.highest.buffers);
      highest_.scratch = std::max(highest_.scratch, effect.highest.scratch);
      highest_.host = std::max(highest_.host, level.host + effect.highest.host);
      measured_ = measured_ && effect.measured;
      estimated_ = std::max(estimated_, effect.estimated);
      sum_ = std::max(sum_, level.activations + level.buffers + effect.highest_sum);
      without_scratch_ = std::max(
          without_scratch_, level.activations + level.buffers + effect.highest_without_scratch);
      if (moments != nullptr) {
        moments->push_back(
            {level.activations + effect.highest.activations, level.buffers + effect.highest.buffers,
             level.activations + level.buffers + effect.highest_sum,
             level.activations + effect.after.activations, level.buffers + effect.after.buffers});
      }
      for (const Level& after : effect.after_each) {
        after_each_.push_back({level.activations + after.activations, level.buffers + after.buffers,
                               0, level.host + after.host});
      }
      level.activations += effect.after.activations;
      level.buffers += effect.after.buffers;
      level.host += effect.after.host;
      for (std::size_t n = 0; n < effect.histories.size(); ++n)
        history[runs.microbatches[n]] = effect.histories[n];
      step_ = effect.step;
    }
  }

  Level highest() const { return highest_; }
  std::int64_t highest_sum() const { return sum_; }
  std::int64_t highest_without_scratch() const { return without_scratch_; }
  bool measured() const { return measured_; }
  std::int64_t estimated() const { return estimated_; }
  const std::vector<Level>& after_each() const { return after_each_; }

 private:
  // What all microbatches share and is there between two runs, such as gradients that several of
  // them add to: bytes and category of each slot.
  using Shared = std::map<int, std::pair<std::int64_t, Category>>;

  // The microbatches of a run, each once, and what each has been through and how large it is.
  struct Runs {
    std::vector<int> lanes;  // by lane: index in `microbatches`
    std::vector<int> microbatches;
    std::vector<std::pair<int, int>> past;  // by microbatch: history, kind of size
    int add(int microbatch) {
      const auto found = std::find(microbatches.begin(), microbatches.end(), microbatch);
      lanes.push_back(static_cast<int>(found - microbatches.begin()));
      if (found == microbatches.end()) microbatches.push_back(microbatch);
      return lanes.back();
    }
  };

  const Effect& of(int segment, const Runs& runs) {
    const auto [found, missing] = effects_.try_emplace({segment, runs.lanes, runs.past, step_});
    if (missing) {
      std::vector<LiveSet> held;
      for (const auto& [history, kind] : runs.past) held.push_back(histories_[history]);
      for (const auto& [shared, id] : steps_) {
        if (id == step_) bring(shared, held[0]);
      }
      std::vector<LaneMemory> lanes;
      for (const int lane : runs.lanes)
        lanes.push_back({&ranks_.of_kind(runs.past[lane].second), &held[lane]});
      Effect effect = walk_lanes(lanes, rank_.program().segments[segment], true, each_);
      effect.step =
          steps_.try_emplace(take(held[0]), static_cast<int>(steps_.size())).first->second;
      for (LiveSet& set : held) {
        effect.histories.push_back(static_cast<int>(histories_.size()));
        histories_.push_back(std::move(set));
      }
      found->second = std::move(effect);
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
  // By segment, Runs::lanes and past, and step.
  std::map<std::tuple<int, std::vector<int>, std::vector<std::pair<int, int>>, int>, Effect>
      effects_;
  Level highest_;
  std::vector<Level> after_each_;
  std::int64_t sum_ = 0, without_scratch_ = 0;
  bool measured_ = true;
  std::int64_t estimated_ = 0;
};

// What lasts: parameters, gradients, optimizer state, and what of them lies in host memory.
MemoryForecast lasting(const RankView& rank) {
  const Program& program = rank.program();
  MemoryForecast forecast;
  for (std::size_t k = 0; k < program.slots.size(); ++k) {
    const Slot& slot = program.slots[k];
    if (!slot.persistent || slot.transient || slot.alias_of >= 0 || !slot.is_flat()) continue;
    forecast[slot.memory == Memory::host ? Category::host : slot.category] +=
        rank.bytes(static_cast<int>(k));
  }
  forecast.peak = forecast.peak_without_scratch = forecast[Category::parameters] +
                                                  forecast[Category::gradients] +
                                                  forecast[Category::optimizer];
  return forecast;
}

class Walk {
 public:
  Walk(const std::vector<LaneMemory>& lanes, bool highest, bool each)
      : program_(lanes.front().rank->program()), lanes_(lanes), highest_(highest), each_(each) {
    for (const LaneMemory& lane : lanes) lane.held->slots.resize(program_.slots.size(), -1);
  }

  Effect run(const Segment& segment) {
    Footprint made;
    for (const Instruction& i : segment.code) {
      const LaneMemory& lane = lanes_[static_cast<std::size_t>(i.lane)];
      own_ = lane.held;
      footprint(
          *lane.rank, i,
          highest_ ? FootprintParts::memory | FootprintParts::scratch : FootprintParts::memory,
          made);
      for (const MemoryEvent& event : made.memory) play(event);
      effect_.measured = effect_.measured && made.measured;
      effect_.estimated = std::max(effect_.estimated, made.estimated);
      let_go_of_scratch();
      for (int slot : i.release) release({Holder::Kind::slot, slot});
      if (each_) effect_.after_each.push_back(effect_.after);
    }
    return effect_;
  }

 private:
  void play(const MemoryEvent& event) {
    using Kind = MemoryEvent::Kind;
    if (event.holder.kind == Holder::Kind::step) {
      level(event.kind == Kind::release ? -event.bytes : event.bytes, event.category);
      return;
    }
    switch (event.kind) {
      case Kind::ensure:
        if (lies(event.holder) < 0) hold(event.holder, make(event));
        break;
      case Kind::make:
        hold(event.holder, make(event));
        break;
      case Kind::share: {
        // A microbatch holds no storage that all lanes share: a view of one counts by itself.
        const int of = &live(event.of) == &live(event.holder) ? lies(event.of) : -1;
        hold(event.holder, of < 0 ? make(event) : of);
        break;
      }
      case Kind::release:
        release(event.holder);
        break;
    }
  }

  // What lasts beyond microbatches is held once for all lanes, beside what the first one holds.
  LiveSet& live(const Holder& holder) const {
    const bool shared =
        holder.kind == Holder::Kind::slot && program_.slots[holder.index].persistent;
    return shared ? *lanes_.front().held : *own_;
  }

  static std::vector<std::pair<Holder, int>>::iterator other(LiveSet& live, const Holder& holder) {
    return std::find_if(live.others.begin(), live.others.end(),
                        [&](const auto& one) { return one.first == holder; });
  }

  int lies(const Holder& holder) const {
    LiveSet& live = this->live(holder);
    if (holder.kind == Holder::Kind::slot) return live.slots[holder.index];
    const auto found = other(live, holder);
    return found == live.others.end() ? -1 : found->second;
  }

  int make(const MemoryEvent& event) {
    LiveSet& live = this->live(event.holder);
    level(event.bytes, event.category);
    live.storages.push_back({event.bytes, 0, event.category});
    return static_cast<int>(live.storages.size()) - 1;
  }

  void hold(const Holder& holder, int storage) {
    LiveSet& live = this->live(holder);
    ++live.storages[storage].users;
    release(holder);
    if (holder.kind == Holder::Kind::slot) {
      live.slots[holder.index] = storage;
    } else {
      live.others.emplace_back(holder, storage);
    }
  }

  void release(const Holder& holder) {
    const int storage = lies(holder);
    if (storage < 0) return;
    LiveSet& live = this->live(holder);
    if (holder.kind == Holder::Kind::slot) {
      live.slots[holder.index] = -1;
    } else {
      live.others.erase(other(live, holder));
    }
    LiveSet::Storage& held = live.storages[storage];
    if (--held.users == 0) level(-held.bytes, held.category);
  }

  void let_go_of_scratch() {
    for (std::size_t k = own_->others.size(); k-- > 0;) {
      if (own_->others[k].first.kind == Holder::Kind::scratch)
        release(Holder(own_->others[k].first));
    }
  }

  void level(std::int64_t bytes, Category category) {
    Level &now = effect_.after, &highest = effect_.highest;
    (category == Category::host      ? now.host
     : category == Category::buffers ? now.buffers
     : category == Category::scratch ? now.scratch
                                     : now.activations) += bytes;
    highest.activations = std::max(highest.activations, now.activations);
    highest.buffers = std::max(highest.buffers, now.buffers);
    highest.scratch = std::max(highest.scratch, now.scratch);
    highest.host = std::max(highest.host, now.host);
    const std::int64_t beside_scratch = now.activations + now.buffers;
    effect_.highest_without_scratch = std::max(effect_.highest_without_scratch, beside_scratch);
    effect_.highest_sum = std::max(effect_.highest_sum, beside_scratch + now.scratch);
  }

  const Program& program_;
  const std::vector<LaneMemory>& lanes_;
  const bool highest_, each_;
  LiveSet* own_ = nullptr;  // what the instruction's lane holds
  Effect effect_;
};

Effect walk_lanes(const std::vector<LaneMemory>& lanes, const Segment& segment, bool highest,
                  bool each) {
  return Walk(lanes, highest, each).run(segment);
}

// The nominal seconds of the segment's instructions that `takes` selects.
template <class Takes>
double seconds(const RankView& rank, const Segment& segment, const Takes& takes) {
  double total = 0;
  std::map<std::pair<int, Piece>, double> known;  // by first like op, and piece
  for (const Instruction& i : segment.code) {
    if (i.op < 0 || !takes(i) || !rank.runs(i)) continue;
    if (i.slice > 0) continue;  // a later slice, counted with the first
    const auto [own, missing] = known.try_emplace({rank.like(i.op), i.piece}, 0);
    for (int step = 0; missing && step < i.parts(); ++step)
      own->second += nominal_seconds(rank.cost(i.op, i.piece, step));
    total += own->second;
  }
  return total;
}

}  // namespace

MemoryForecast highest_of(const MemoryForecast& a, const MemoryForecast& b) {
  MemoryForecast highest = a;
  for (std::size_t c = 0; c < highest.bytes.size(); ++c)
    highest.bytes[c] = std::max(a.bytes[c], b.bytes[c]);
  highest.peak = std::max(a.peak, b.peak);
  highest.peak_without_scratch = std::max(a.peak_without_scratch, b.peak_without_scratch);
  highest.measured = a.measured && b.measured;
  highest.estimated = std::max(a.estimated, b.estimated);
  return highest;
}

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
  forecast[Category::scratch] = timeline.highest().scratch;
  forecast[Category::host] += timeline.highest().host;
  forecast.peak += timeline.highest_sum();
  forecast.peak_without_scratch += timeline.highest_without_scratch();
  forecast.measured = timeline.measured();
  forecast.estimated = timeline.estimated();
  return forecast;
}

std::int64_t highest_peak(std::span<const Program> stages, const DeviceScratch* scratch) {
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

Effect walk(const RankView& rank, LiveSet& held, const Segment& segment, bool highest, bool each) {
  return walk_lanes({{&rank, &held}}, segment, highest, each);
}

std::vector<WorkTimes> work_times(const std::vector<Program>& programs) {
  std::vector<WorkTimes> times(programs.front().stage_of.size());
  for (const Program& program : programs) {
    const RankView rank(program, program.first());
    for (std::size_t v = 0; v < times.size(); ++v) {
      if (program.stage_of[v] != program.stage) continue;
      const auto of = [&](SegmentKind kind) {
        return seconds(rank, program.segments[program.segment(kind, static_cast<int>(v))],
                       [](const Instruction&) { return true; });
      };
      times[v] = {of(SegmentKind::forward), of(SegmentKind::dgrad), of(SegmentKind::wgrad), 0};
    }
  }
  return times;
}

WorkTimes work_times(const RankView& rank, const Segment& forward, const Segment& backward) {
  const auto waits = [](const Instruction& i) { return i.piece == Piece::wgrad; };
  return {seconds(rank, forward, [](const Instruction&) { return true; }),
          seconds(rank, backward, [&](const Instruction& i) { return !waits(i); }),
          seconds(rank, backward, waits), 0};
}

std::vector<WorkBytes> work_bytes(const std::vector<Program>& programs) {
  std::vector<WorkBytes> bytes(programs.front().stage_of.size());
  for (Program program : programs) {
    grant_in_place(program);
    note_releases(program);
    const RankView rank(program, program.first());
    for (std::size_t v = 0; v < bytes.size(); ++v) {
      if (program.stage_of[v] != program.stage) continue;
      std::vector<int> forward, dgrad;
      const auto add = [&](std::vector<int>& list, SegmentKind kind, bool gradient) {
        const int segment = program.segment(kind, static_cast<int>(v), gradient);
        if (segment >= 0) list.push_back(segment);
      };
      for (const bool gradient : {false, true}) {
        std::vector<int>& list = gradient ? dgrad : forward;
        add(list, SegmentKind::post, gradient);
        add(list, SegmentKind::receive, gradient);
        add(list, gradient ? SegmentKind::dgrad : SegmentKind::forward, false);
        add(list, SegmentKind::sent, gradient);
      }
      const auto both = [&] {
        std::vector<int> list = forward;
        list.insert(list.end(), dgrad.begin(), dgrad.end());
        return list;
      };
      bytes[v] = {static_cast<double>(bytes_left(rank, forward)),
                  static_cast<double>(bytes_left(rank, both()))};
    }
  }
  return bytes;
}

}  // namespace mw
