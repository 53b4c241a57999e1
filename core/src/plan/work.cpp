// Weighs each virtual stage's works for the scheduler: relative times on a typical device, and
// bytes of activations.
#include "meshwright/engine/work.h"

#include <algorithm>
#include <map>
#include <utility>

#include "meshwright/engine/memory.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

constexpr double rate = 1e12, bandwidth = rate / 20;

// Of all that `takes` takes.
template <class Takes>
double seconds(const RankView& rank, const Segment& segment, const Takes& takes) {
  double total = 0;
  std::map<std::pair<int, Piece>, double> known;  // of ops that are alike
  for (const Instruction& i : segment.code) {
    if (i.op < 0 || !takes(i) || !rank.runs(i)) continue;
    const auto [own, missing] = known.try_emplace({rank.like(i.op), i.piece}, 0);
    for (int step = 0; missing && step < i.ring_steps; ++step) {
      const Cost& cost = rank.cost(i.op, i.piece, step);
      own->second += std::max(cost.executed / rate, cost.bytes / bandwidth);
    }
    total += own->second;
  }
  return total;
}

}  // namespace

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
