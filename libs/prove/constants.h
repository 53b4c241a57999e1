// What of a step is built into ops (OpType::constants), beside the step that the programs run.
#pragma once

#include "prove/prove.h"

namespace mw::proving {

// Refuses each op whose constant is not the step's: "tokens" and "sequences" are those of all
// microbatches. Notes losses that declare none, as nothing says by what they divide, and constants
// of other names.
void check_constants(const Program& program, Proof& proof);

}  // namespace mw::proving
