// The checks of `meshwright plugins test` that take several processes: whether a communicator
// carries a run.
#pragma once

#include <string>
#include <vector>

#include "app/kit_report.h"

namespace mw {

// Starts processes of this program over the communicator of this name, which they look for in
// `plugin_path`: mixes beside one rank, bytes and memory beside the prediction, and what the others
// say when one is killed.
void check_communicator(const std::string& name, const std::vector<std::string>& plugin_path,
                        KitReport& report);

}  // namespace mw
