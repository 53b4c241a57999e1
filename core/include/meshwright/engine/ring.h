// An instruction that stands for a ring of steps, written out: send on, compute with the shard that
// is here, receive. What a ring does stands here alone; the executor runs it, footprints count it
// and the pricer plays it step by step.
#pragma once

#include <vector>

#include "meshwright/program.h"

namespace mw {

// All steps of `ring` (Instruction::ring), one after the other.
std::vector<Instruction> ring_steps(const Program& program, const Instruction& ring);

// The same, with the steps between the first ones and the last written once where they differ in
// nothing but the shard's place: those instructions have `ring_alike`. To play them once leaves
// every slot as all of them do, and a rank holds as much in each.
std::vector<Instruction> ring_kinds(const Program& program, const Instruction& ring);

// How many instructions ring_steps() has.
std::size_t ring_length(const Program& program, const Instruction& ring);

}  // namespace mw
