// The listing of a stage's program, for people.
#pragma once

#include <string>

#include "meshwright/program.h"

namespace mw {

// Lists the instructions, one per line, segment by segment, and then the timeline. Sizes are those
// of the stage's first rank.
std::string listing(const Program& program);

}  // namespace mw
