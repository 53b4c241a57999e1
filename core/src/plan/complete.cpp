#include <algorithm>

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
  Segment segment{"finish", {}};
  const int count = static_cast<int>(program.buckets.size());
  for (int b = 0; b < count; ++b) {
    const Bucket& bucket = program.buckets[b];
    if (!bucket.reduce.empty() && !bucket.overlap) {
      segment.code.push_back(of_bucket(Code::reduce, b, program, "gradients"));
    }
  }
  for (int b = 0; b < count; ++b) {
    if (!program.buckets[b].reduce.empty()) {
      segment.code.push_back(of_bucket(Code::reduced, b, program, "gradients"));
    }
  }
  Instruction totals;
  totals.code = Code::totals;
  totals.phase = "report";
  totals.label = "loss, gradient norm";
  segment.code.push_back(totals);
  for (int b = 0; b < count; ++b) {
    segment.code.push_back(of_bucket(Code::update, b, program, "optimizer"));
  }
  program.segments.push_back(std::move(segment));
}

// Gradient accumulation: one microbatch after the other.
void accumulate(Program& program) {
  const int forward = program.segment("forward"), backward = program.segment("backward");
  for (int m = 0; m < program.microbatches; ++m) {
    program.timeline.push_back({forward, m});
    program.timeline.push_back({backward, m});
  }
}

// Puts the starts of overlapped reductions into the timeline's last action, which gets a segment of its
// own: each right after the last gradient of its bucket.
void place_reductions(Program& program) {
  std::vector<int> buckets;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (program.buckets[b].overlap) buckets.push_back(static_cast<int>(b));
  }
  if (buckets.empty()) return;
  Segment last = program.segments[program.timeline.back().segment];
  last.name += ".last";
  const std::vector<int> at = gradients_ready(program, last);
  std::vector<std::pair<int, int>> starts;  // after which instruction, bucket
  for (int b : buckets) {
    int after = -1;
    for (int parameter : program.buckets[b].parameters) after = std::max(after, at[parameter]);
    starts.emplace_back(after, b);
  }
  std::stable_sort(starts.begin(), starts.end(),
                   [](auto& x, auto& y) { return x.first > y.first; });
  for (const auto& [after, b] : starts) {
    last.code.insert(last.code.begin() + after + 1,
                     of_bucket(Code::reduce, b, program, "gradients"));
  }
  program.timeline.back().segment = static_cast<int>(program.segments.size());
  program.segments.push_back(std::move(last));
}

}  // namespace

void complete(Program& program) {
  if (program.timeline.empty()) accumulate(program);
  place_reductions(program);
  finish(program);
  program.timeline.push_back({program.segment("finish"), -1});
  grant_in_place(program);
  note_releases(program);
}

}  // namespace mw
