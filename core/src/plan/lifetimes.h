// Which instruction uses a slot last: what may be overwritten in place, and what may be released.
#pragma once

#include <functional>
#include <vector>

#include "meshwright/program.h"

namespace mw {

// Calls `visit` with every slot that the instruction reads or writes (a slot may come twice).
void for_each_slot(const Instruction& instruction, const std::function<void(int)>& visit);

// For each parameter, the index of the instruction of `segment` after which its gradient is whole, -1
// if the segment does not touch it.
std::vector<int> gradients_ready(const Program& program, const Segment& segment);

// Sets Instruction::in_place and Slot::alias_of.
void grant_in_place(Program& program);

// Sets Instruction::release.
void note_releases(Program& program);

}  // namespace mw
