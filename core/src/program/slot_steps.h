// Instructions between two slots of a program.
#pragma once

#include "meshwright/program.h"

namespace mw {

// `to` is what `from` is, without a copy.
Instruction alias(const Program& program, int from, int to, const char* phase);
// `share` is added to the gradient in `to`.
Instruction addition(const Program& program, int to, int share);

}  // namespace mw
