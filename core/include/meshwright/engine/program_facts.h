// What can be read off a program without a rank's sizes: its rings written out step by step, ops
// that are alike, and buckets as reduction hooks see them.
#pragma once

#include <vector>

#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

// The kind of the segment that the instruction is of: where that is a braid, of the instruction's
// lane.
inline SegmentKind kind_of(const Segment& segment, const Instruction& instruction) {
  if (segment.kind != SegmentKind::braid) return segment.kind;
  return segment.lanes[static_cast<std::size_t>(instruction.lane)].kind;
}

// All steps of `ring` (Instruction::ring), one after the other.
std::vector<Instruction> ring_steps(const Program& program, const Instruction& ring);

// The same, with the steps between the first ones and the last written once where they differ in
// nothing but the shard's place: those instructions have `ring_alike`. To play them once leaves
// every slot as all of them do, and a rank holds as much in each.
std::vector<Instruction> ring_kinds(const Program& program, const Instruction& ring);

// How many instructions ring_steps() has.
std::size_t ring_length(const Program& program, const Instruction& ring);

// Whether the instruction begins or awaits a gather of updated parameters that may be under way
// from one step to the next (Bucket::gather_overlaps_forward).
bool outlasts_step(const Program& program, const Instruction& instruction);
// Whether it belongs to the update of a bucket that the step before has left for this step's
// forward (Bucket::update_overlaps_forward): the update itself, a copy of what is updated, or the
// beginning of the gather for the ranks that keep it whole. Each bucket's stand in a forward once a
// step, in order. They are carried out there unless they have been since the step before; in a
// first step the update changes nothing.
bool completes_update(const Program& program, const Instruction& instruction);

// Finds ops of a program that are alike. A model's layers repeat them, and all of them cost a rank
// what one of them costs.
class LikeOps {
 public:
  // Keeps a reference to the program.
  explicit LikeOps(const Program& program);
  // The first of the ops asked for so far that are of this one's kind (Graph::kind) and have its
  // cut: this one where there is none.
  int first(int op);
  // Numbers these first ones from 0, in the order in which they were asked for.
  int number(int op) { return number_[first(op)]; }

 private:
  bool cut_alike(int a, int b) const;

  const Program& program_;
  std::vector<int> first_;            // of each op; -1: not asked for
  std::vector<int> number_;           // of those that are the first
  std::vector<int> of_kind_, other_;  // the last one of a kind, and the one before it; -1: none
  int count_ = 0;
};

// A bucket as a reduction hook sees it, on one rank.
BucketShape shape_of(const Program& program, const Bucket& bucket, const Coordinates& at);

}  // namespace mw
