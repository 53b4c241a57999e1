// V-Half and V-Min (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): two chunks in
// a V, in a half and a third of 1F1B's activations. A microbatch passes the V in a pattern, which
// is repeated every 6 units of time: each stage does F, I and W of two chunks. Between neighbouring
// stages the pattern moves by a number of units that may differ on each of the four ways, down and
// up the V, forward and backward. The sooner a microbatch is through, the fewer a stage holds.
#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "schedulers.h"
#include "zero_bubble.h"

namespace pp {
namespace {

constexpr int period = 6, most_moves = 4, most_waits = 3;

// When a stage begins F and I of microbatch 0, by way: F of chunk 0 goes down the V, F of chunk 1
// up, I of chunk 1 down, I of chunk 0 up.
using Starts = std::array<int, 4>;
struct Pattern {
  std::vector<Starts> starts;  // an entry for each stage; none if the pattern cannot be
  int held = 0;                // the most chunks of microbatches that a stage holds at once
  int length = 0;              // units that a microbatch takes
};

// How many microbatches a chunk holds at most, at a time `at` of the period, if each is held from
// `from` until `until`.
int held_at(int at, int from, int until) {
  const auto before = [at](int end) { return (end - 1 - at + period) / period; };
  return before(until) - before(from);
}

// The most chunks that a stage holds. A chunk is held from its F to the end of its W. The two W's
// take the places of the period that F and I leave, each the next one after its I. Of the two ways
// to give them their places, the one with fewer chunks is taken.
int held_by(const Starts& starts) {
  std::array<bool, period> taken{};
  for (const int start : starts) taken[static_cast<std::size_t>(start % period)] = true;
  std::vector<int> left;
  for (int place = 0; place < period; ++place)
    if (!taken[static_cast<std::size_t>(place)]) left.push_back(place);
  const auto end_of = [](int dgrad, int place) {
    return dgrad + 1 + ((place - dgrad - 1) % period + period) % period + 1;
  };
  int least = 0;
  for (const bool swapped : {false, true}) {
    const int up = end_of(starts[2], left[swapped ? 1 : 0]),
              down = end_of(starts[3], left[swapped ? 0 : 1]);
    int most = 0;
    for (int at = 0; at < period; ++at)
      most = std::max(most, held_at(at, starts[1], up) + held_at(at, starts[0], down));
    least = least == 0 ? most : std::min(least, most);
  }
  return least;
}

// The pattern in which each way moves by so many units and waits for so many before it begins; no
// starts if two works of a stage would meet.
Pattern pattern_of(int stages, const Starts& moves, const Starts& waits) {
  Pattern pattern;
  pattern.starts.resize(static_cast<std::size_t>(stages));
  int begin = 0;
  for (std::size_t way = 0; way < moves.size(); ++way) {
    begin += waits[way];
    for (int n = 0; n < stages; ++n) {
      const int stage = way % 2 == 0 ? n : stages - 1 - n;
      pattern.starts[static_cast<std::size_t>(stage)][way] = begin + n * moves[way];
    }
    begin += (stages - 1) * moves[way] + 1;
  }
  pattern.length = begin;
  for (const Starts& of : pattern.starts) {
    std::array<bool, period> taken{};
    for (const int start : of) {
      bool& place = taken[static_cast<std::size_t>(start % period)];
      if (place) return {};
      place = true;
    }
    pattern.held = std::max(pattern.held, held_by(of));
  }
  return pattern;
}

// The patterns that hold the fewest chunks and are through soonest; `most`: chunks that may be held
// (0: as few as can be).
std::vector<Pattern> patterns(int stages, int most) {
  constexpr std::size_t kept = 6;
  std::vector<Pattern> all;
  const auto each = [](int least, int limit, const auto& call) {
    for (int a = least; a <= limit; ++a)
      for (int b = least; b <= limit; ++b)
        for (int c = least; c <= limit; ++c) call(a, b, c);
  };
  each(1, most_moves, [&](int a, int b, int c) {
    for (int d = 1; d <= most_moves; ++d) {
      Pattern best;
      each(0, most_waits, [&](int x, int y, int z) {
        Pattern one = pattern_of(stages, {a, b, c, d}, {0, x, y, z});
        if (!one.starts.empty() && (best.starts.empty() || one.length < best.length))
          best = std::move(one);
      });
      if (!best.starts.empty() && (most == 0 || best.held <= most)) all.push_back(std::move(best));
    }
  });
  // A stage idles before its first microbatch arrives and after its last one has left. That takes
  // the less time, the sooner a microbatch is through.
  std::stable_sort(all.begin(), all.end(), [&](const Pattern& one, const Pattern& other) {
    return most == 0 ? std::tie(one.held, one.length) < std::tie(other.held, other.length)
                     : one.length < other.length;
  });
  if (most == 0 && !all.empty()) {
    const int least = all.front().held;
    std::erase_if(all, [&](const Pattern& one) { return one.held > least; });
  }
  if (all.size() > kept) all.resize(kept);
  return all;
}

// The pattern once for each microbatch, in order of time.
Skeleton repeated(const Pattern& pattern, int microbatches) {
  const int stages = static_cast<int>(pattern.starts.size());
  Skeleton skeleton;
  for (int s = 0; s < stages; ++s) {
    const int down = s, up = 2 * stages - 1 - s;
    const std::array<std::pair<int, Work>, 4> works = {
        {{down, Work::forward}, {up, Work::forward}, {up, Work::dgrad}, {down, Work::dgrad}}};
    std::vector<std::pair<std::int64_t, Action>> timed;
    for (std::size_t way = 0; way < works.size(); ++way) {
      const int start = pattern.starts[static_cast<std::size_t>(s)][way];
      for (int m = 0; m < microbatches; ++m)
        timed.emplace_back(start + std::int64_t{period} * m,
                           Action{works[way].first, works[way].second, m});
    }
    std::sort(timed.begin(), timed.end(),
              [](const auto& one, const auto& other) { return one.first < other.first; });
    auto& order = skeleton.emplace_back();
    for (const auto& [start, action] : timed) order.push_back(action);
  }
  return skeleton;
}

}  // namespace

Schedule ThriftyV::unpaired(const ScheduleRequest& request) const {
  validate(*this, request);
  const int p = request.stages;
  const auto stage_of = v_placement(p);
  // Half of the chunks of 1F1B's p microbatches, and two more; or as few as can be.
  const int half = p + 2;
  const std::vector<Pattern> all = patterns(p, least_ ? 0 : half);
  const double held = 0.5 * (least_ ? all.at(0).held : half);  // in microbatches
  const double limit = request.memory_limit > 0
                           ? request.memory_limit
                           : std::max(1.0, std::min<double>(held, request.microbatches)) *
                                 most_bytes_of_one(stage_of, request);
  ZeroBubbleSearch search(*this, request, limit);
  for (const Pattern& each : all) search.add(repeated(each, request.microbatches));
  for (const bool shares : {true, false})
    search.add(greedy_skeleton(stage_of, request, limit, shares));
  return search.best();
}

}  // namespace pp
