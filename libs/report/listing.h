// A stage's program as people read it.
#pragma once

#include <string>

#include "meshwright/program.h"

namespace mw {

// One instruction a line, segment by segment, and the timeline; as on the stage's first rank.
std::string listing(const Program& program);

}  // namespace mw
