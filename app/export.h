// A run's export of weights, as the run sees it.
#pragma once

#include <string>

#include "meshwright/json.h"
#include "script/experiment.h"

namespace mw {

// Before a run, in the process that has rank 0: makes room for the export, if there is one. Returns
// what is to be said of it, which may be nothing. Throws as HfExport::begin.
std::string begin_export(const Experiment& experiment);
// After it: gives the folder its name. False if there is no export.
bool finish_export(const Experiment& experiment);
// Says in a result, and in its text, where the weights are.
void add_export(const Experiment& experiment, Json& result);

}  // namespace mw
