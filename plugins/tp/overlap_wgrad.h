// Weight gradients beside tp's collectives.
#pragma once

#include "meshwright/passes.h"

namespace tp {

// Lets weight gradients run while an input gradient is on its way: each collective of backward
// starts right after the last dgrad that feeds it, and the wgrads that stood before it come between
// start and wait.
mw::Pass overlap_wgrad();

}  // namespace tp
