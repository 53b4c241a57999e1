// Takes backward, reductions and the update out of a plan's programs, and what was kept for them.
#include "meshwright/engine/forward_only.h"

#include <set>

#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

bool is_totals(const Segment& segment) {
  return segment.kind == SegmentKind::finish && !segment.code.empty() &&
         segment.code.back().code == Code::totals;
}

// An order in which every forward waits for none that comes after it is one without the backwards
// between them too; and where a send was awaited, its receive has begun by then.
bool stays(const Segment& segment) {
  switch (segment.kind) {
    case SegmentKind::forward:
    case SegmentKind::begin:
    case SegmentKind::gather:
      return true;
    case SegmentKind::post:
    case SegmentKind::receive:
    case SegmentKind::sent:
      return !segment.gradient;
    case SegmentKind::finish:
      return is_totals(segment);
    default:
      return false;
  }
}

// Copies that nobody reads: activations that went to host memory until backward.
void drop_idle_copies(Program& program) {
  std::set<int> read;
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) read.insert(i.inputs.begin(), i.inputs.end());
  }
  for (Segment& segment : program.segments) {
    std::erase_if(segment.code, [&](const Instruction& i) {
      return i.code == Code::copy && i.release.empty() && !program.slots[i.outputs[0]].persistent &&
             read.count(i.outputs[0]) == 0;
    });
  }
}

// Of the step's sums, the loss alone.
void keep_loss(const Program& program, Segment& segment) {
  std::erase_if(segment.code, [&](const Instruction& i) {
    return i.code == Code::settle && i.outputs[0] != program.loss;
  });
  for (Instruction& i : segment.code) {
    if (i.code == Code::begin_sum) i.outputs = {program.loss};
    if (i.code != Code::totals) continue;
    i.inputs = {program.loss};
    i.contributing.resize(1);
  }
}

void keep_forward(Program& program) {
  // Parameters that stay gathered end with the step: at the totals now.
  std::set<int> gathered, ending;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.sharded_state == ShardedState::parameters) gathered.insert(bucket.flat.parameters);
  }
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::finish) continue;
    for (const Instruction& i : segment.code) {
      for (int slot : i.release) {
        if (gathered.count(slot) > 0) ending.insert(slot);
      }
    }
  }
  std::erase_if(program.timeline,
                [&](const SegmentRun& run) { return !stays(program.segments[run.segment]); });
  drop_unused(program);
  for (Segment& segment : program.segments) {
    if (is_totals(segment)) segment.code.back().release.assign(ending.begin(), ending.end());
    keep_loss(program, segment);
    for (Instruction& i : segment.code) {
      erase_if(i.release, [&](int slot) { return !program.slots[slot].persistent; });
    }
  }
  drop_idle_copies(program);
  note_releases(program);
}

}  // namespace

std::shared_ptr<const Plan> forward_only(const Plan& plan) {
  auto forward = std::make_shared<Plan>(plan);
  for (Program& program : forward->programs) keep_forward(program);
  return forward;
}

}  // namespace mw
