// Where an experiment's weights come from, and where they go: its keys `weights` and `export`.
#pragma once

#include <memory>

#include "input/experiment.h"
#include "meshwright/options.h"

namespace mw {

// Opens the weights and holds their names, shapes and config.json to the model. Nothing without a
// plan, or the key.
void read_weights(const Values& values, Experiment& experiment, Problems& problems);

// The export of an experiment that was found right; null without the key. Throws Error (options) for
// what the key's table does not take.
std::shared_ptr<HfExport> read_export(const Values& values, const Experiment& experiment);

}  // namespace mw
