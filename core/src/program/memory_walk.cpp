// Plays the allocations and releases of one segment and notes the highest level of each
// category.
#include "meshwright/engine/memory_walk.h"

#include <algorithm>

namespace mw {
namespace {

class Walk {
 public:
  Walk(const RankView& rank, LiveSet& held, bool highest, bool each)
      : rank_(rank), live_(held), highest_(highest), each_(each) {
    live_.slots.resize(rank.program().slots.size(), -1);
  }

  Effect run(const Segment& segment) {
    Footprint made;
    for (const Instruction& i : segment.code) {
      footprint(rank_, i, highest_ ? Asks::memory | Asks::scratch : Asks::memory, made);
      for (const MemoryEvent& event : made.memory) play(event);
      effect_.measured = effect_.measured && made.measured;
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
        const int of = lies(event.of);
        hold(event.holder, of < 0 ? make(event) : of);
        break;
      }
      case Kind::release:
        release(event.holder);
        break;
    }
  }

  std::vector<std::pair<Holder, int>>::iterator other(const Holder& holder) const {
    return std::find_if(live_.others.begin(), live_.others.end(),
                        [&](const auto& one) { return one.first == holder; });
  }

  int lies(const Holder& holder) const {
    if (holder.kind == Holder::Kind::slot) return live_.slots[holder.index];
    const auto found = other(holder);
    return found == live_.others.end() ? -1 : found->second;
  }

  int make(const MemoryEvent& event) {
    level(event.bytes, event.category);
    live_.storages.push_back({event.bytes, 0, event.category});
    return static_cast<int>(live_.storages.size()) - 1;
  }

  void hold(const Holder& holder, int storage) {
    ++live_.storages[storage].users;
    release(holder);
    if (holder.kind == Holder::Kind::slot) {
      live_.slots[holder.index] = storage;
    } else {
      live_.others.emplace_back(holder, storage);
    }
  }

  void release(const Holder& holder) {
    const int storage = lies(holder);
    if (storage < 0) return;
    if (holder.kind == Holder::Kind::slot) {
      live_.slots[holder.index] = -1;
    } else {
      live_.others.erase(other(holder));
    }
    LiveSet::Storage& held = live_.storages[storage];
    if (--held.users == 0) level(-held.bytes, held.category);
  }

  void let_go_of_scratch() {
    for (std::size_t k = live_.others.size(); k-- > 0;) {
      if (live_.others[k].first.kind == Holder::Kind::scratch)
        release(Holder(live_.others[k].first));
    }
  }

  void level(std::int64_t bytes, Category category) {
    Level &now = effect_.after, &highest = effect_.highest;
    (category == Category::host      ? now.host
     : category == Category::buffers ? now.buffers
                                     : now.activations) += bytes;
    highest.activations = std::max(highest.activations, now.activations);
    highest.buffers = std::max(highest.buffers, now.buffers);
    highest.host = std::max(highest.host, now.host);
    effect_.highest_sum = std::max(effect_.highest_sum, now.activations + now.buffers);
  }

  const RankView& rank_;
  LiveSet& live_;
  const bool highest_, each_;
  Effect effect_;
};

}  // namespace

Effect walk(const RankView& rank, LiveSet& held, const Segment& segment, bool highest, bool each) {
  return Walk(rank, held, highest, each).run(segment);
}

}  // namespace mw
