#include <algorithm>
#include <functional>
#include <map>

#include "plan/build.h"
#include "plan/lifetimes.h"

namespace mw {
namespace {

Instruction of_bucket(Code code, int bucket, const Program& program, const char* phase) {
  Instruction i;
  i.code = code;
  i.bucket = bucket;
  i.phase = phase;
  i.label = program.buckets[bucket].name;
  return i;
}

void finish(Program& program) {
  Segment segment;
  segment.name = "finish";
  segment.kind = SegmentKind::finish;
  const int count = static_cast<int>(program.buckets.size());
  const auto for_buckets = [&](Code code, const char* phase, auto&& which) {
    for (int b = 0; b < count; ++b) {
      if (which(program.buckets[b])) segment.code.push_back(of_bucket(code, b, program, phase));
    }
  };
  const auto reduces = [](const Bucket& b) {  // else every microbatch does
    return !b.reduce.empty() && b.parted < Parted::gradients && !b.each;
  };
  const auto reduces_parts = [&](const Bucket& b) {
    return !b.parts.empty() && !program.part_reduction(b).atoms.empty();
  };
  for_buckets(Code::drop, "gradients", [](const Bucket& b) { return b.keeps; });
  for_buckets(Code::reduce, "gradients", [&](const Bucket& b) { return reduces(b) && !b.overlap; });
  for_buckets(Code::reduced, "gradients", reduces);
  for_buckets(Code::reduce_parts, "gradients", reduces_parts);
  for_buckets(Code::reduced_parts, "gradients", reduces_parts);
  Instruction totals;
  totals.code = Code::totals;
  totals.phase = "report";
  totals.label = "loss, gradient norm";
  segment.code.push_back(totals);
  // Parameters that all keep whole are gathered from those who updated them.
  const auto gathers = [](const Bucket& b) {
    return b.parted == Parted::optimizer || b.parted == Parted::gradients;
  };
  for (int b = 0; b < count; ++b) {
    segment.code.push_back(of_bucket(Code::update, b, program, "optimizer"));
    if (gathers(program.buckets[b])) {
      segment.code.push_back(of_bucket(Code::gather, b, program, "parameters"));
    }
  }
  for_buckets(Code::gathered, "parameters", gathers);
  program.segments.push_back(std::move(segment));
}

// Puts the starts of overlapped reductions into the timeline's runs that make their gradients whole. A
// run with reductions gets a segment of its own: each stands right after the last gradient of its bucket.
void place_reductions(Program& program) {
  const auto ready = gradients_ready(program);
  std::map<int, std::vector<std::pair<int, int>>> starts;  // run -> after which instruction, bucket
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].overlap || program.buckets[b].each) continue;
    std::pair<int, int> last{-1, -1};
    for (int parameter : program.buckets[b].parameters) last = std::max(last, ready[parameter]);
    if (last.first < 0) {
      program.buckets[b].overlap = false;
    } else {
      starts[last.first].emplace_back(last.second, static_cast<int>(b));
    }
  }
  for (auto& [run, list] : starts) {
    const int of = program.timeline[run].segment;
    Segment last = program.segments[of];
    last.name += ".last";
    last.copy_of = of;
    std::stable_sort(list.begin(), list.end(), [](auto& x, auto& y) { return x.first > y.first; });
    for (const auto& [after, b] : list) {
      last.code.insert(last.code.begin() + after + 1,
                       of_bucket(Code::reduce, b, program, "gradients"));
    }
    program.timeline[run].segment = static_cast<int>(program.segments.size());
    program.segments.push_back(std::move(last));
  }
}

// Reductions of buckets that every run which adds to them reduces: begun after its last gradient, or at the
// end, and awaited there.
void place_each(Program& program) {
  std::vector<int> bucket_of(program.slots.size(), -1);
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].each) continue;
    for (int p : program.buckets[b].parameters) {
      bucket_of[program.parameters[p].gradient_slot] = static_cast<int>(b);
    }
  }
  for (Segment& segment : program.segments) {
    std::map<int, int> last;  // bucket -> instruction
    for (std::size_t i = 0; i < segment.code.size(); ++i) {
      for_each_slot(segment.code[i], [&](int slot) {
        if (bucket_of[slot] >= 0) last[bucket_of[slot]] = static_cast<int>(i);
      });
    }
    const int end = static_cast<int>(segment.code.size());
    std::multimap<int, int, std::greater<>> starts;  // after which instruction -> bucket
    for (const auto& [bucket, at] : last) {
      starts.emplace(program.buckets[bucket].overlap ? at : end - 1, bucket);
    }
    for (const auto& [after, bucket] : starts) {
      segment.code.insert(segment.code.begin() + after + 1,
                          of_bucket(Code::reduce, bucket, program, "gradients"));
    }
    for (const auto& [bucket, at] : last) {
      segment.code.push_back(of_bucket(Code::reduced, bucket, program, "gradients"));
    }
  }
}

}  // namespace

void complete(Program& program) {
  place_each(program);
  place_reductions(program);
  finish(program);
  program.timeline.push_back({program.segment(SegmentKind::finish, 0), -1});
  grant_in_place(program);
  note_releases(program);
}

}  // namespace mw
