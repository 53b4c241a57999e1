// Facts of a program that need no sizes of a rank: its rings written out step by step, ops that are
// alike, and the shapes of buckets for reduction hooks.
#pragma once

#include <vector>

#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

// The kind of an instruction's segment; in a braid, the kind of the instruction's lane.
inline SegmentKind kind_of(const Segment& segment, const Instruction& instruction) {
  if (segment.kind != SegmentKind::braid) return segment.kind;
  return segment.lanes[static_cast<std::size_t>(instruction.lane)].kind;
}

// Writes a ring instruction (Instruction::ring) as the instructions of all its steps.
std::vector<Instruction> ring_steps(const Program& program, const Instruction& ring);

// As ring_steps(), but middle steps that differ only in the place of the shard are written once,
// with their number in `ring_alike`. Running such a step once leaves the slots as all of them
// would, and needs as much memory as each.
std::vector<Instruction> ring_kinds(const Program& program, const Instruction& ring);

// The number of instructions that ring_steps() returns.
std::size_t ring_length(const Program& program, const Instruction& ring);

// The rule by which an instruction updates its bucket: the optimizer's, or the outer optimizer's;
// null: none, as for counters that a step moves.
const UpdateRule* rule_of_update(const Program& program, const Instruction& update);
// Whether the instruction begins or awaits a transfer that may be under way from one step to the
// next: a gather of updated parameters (Bucket::gather_overlaps_forward), or a sum of outer
// gradients (OuterSteps::delay).
bool outlasts_step(const Program& program, const Instruction& instruction);
// Whether the instruction belongs to an update that the last step left to this step's forward
// (Bucket::update_overlaps_forward): the update itself, a copy of updated tensors, or the start of
// the gather of whole parameters. These instructions stand in the forward of one microbatch, in
// order. They are skipped if the update was already completed between the steps. In the first step
// of a run the update changes nothing.
bool completes_update(const Program& program, const Instruction& instruction);

// Finds ops of a program that cost a rank the same, because a model's layers repeat them.
class LikeOps {
 public:
  // Keeps a reference to the program.
  explicit LikeOps(const Program& program);
  // The representative of ops like `op`: the first op asked for that has the same kind
  // (Graph::kind) and is cut in the same way; `op` itself if there is none yet.
  int first(int op);
  // The number of the representative, from 0, in the order in which they were asked for.
  int number(int op) { return number_[first(op)]; }

 private:
  bool cut_alike(int a, int b) const;

  const Program& program_;
  std::vector<int> first_;   // the representative of each op; -1: not asked for
  std::vector<int> number_;  // the number of each representative
  // The last representative of each kind, and the one of the same kind before each representative;
  // -1: none.
  std::vector<int> of_kind_, other_;
  int count_ = 0;
};

// What an instruction that runs no op does, for tables of work: "update", "gradient norm".
const char* work_name(const Instruction& i);

// The shape of a bucket on one rank, for a reduction hook.
BucketShape shape_of(const Program& program, const Bucket& bucket, const Coordinates& at);
// The shape of a sharded bucket on one rank, for a hook that gathers its parameters: `element` is
// the size of a parameter, `ways` the number of ranks that have shards.
BucketShape gathered_shape_of(const Program& program, const Bucket& bucket, const Coordinates& at);

}  // namespace mw
