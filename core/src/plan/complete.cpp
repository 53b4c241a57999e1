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
  const int last = program.segment("backward.last");
  for (int m = 0; m < program.microbatches; ++m) {
    program.timeline.push_back({forward, m});
    const bool final = m + 1 == program.microbatches && last >= 0;
    program.timeline.push_back({final ? last : backward, m});
  }
}

}  // namespace

void complete(Program& program) {
  if (program.timeline.empty()) accumulate(program);
  finish(program);
  program.timeline.push_back({program.segment("finish"), -1});
  grant_in_place(program);
  note_releases(program);
}

}  // namespace mw
