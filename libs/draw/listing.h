// The listing of a stage's program, for people.
#pragma once

#include <string>

#include "meshwright/program.h"

namespace mw {

// Lists the instructions, one per line, segment by segment, and then the timeline. Sizes are those
// of the stage's first rank.
std::string listing(const Program& program);

// What the kernels of all segments that run do to memory, by piece and kind of op: how many there
// are, the bytes that they read and write, as passes over the largest of their operands and results
// too, and their FLOPs.
std::string kernels_table(const Program& program);

}  // namespace mw
