// Hands the parameters of a run to an export, whatever the mix.
#pragma once

#include "checkpoint/hf_export.h"
#include "run/executor.h"

namespace mw {

// Brings each parameter together, and writes those of this stage on its first rank. The numbers are
// those that the optimizer updates, masters where there are such. All ranks call alike, between
// steps. Throws Error (run) if a file cannot be written.
void export_parameters(Executor& executor, const HfExport& all);

}  // namespace mw
