// Finds the last use of each slot: after it, a slot may be overwritten in place or released.
#pragma once

#include <utility>
#include <vector>

#include "meshwright/program.h"

namespace mw {

// The run of the timeline and the instruction in it after which each parameter's gradient is whole,
// (-1, -1) if nothing touches it.
std::vector<std::pair<int, int>> gradients_ready(const Program& program);

// Sets Instruction::in_place and Slot::alias_of.
void grant_in_place(Program& program);

// Sets Instruction::release.
void note_releases(Program& program);

}  // namespace mw
