// The checks of `meshwright plugins test` that take several processes: whether a communicator
// carries a run.
#pragma once

#include <string>
#include <vector>

#include "app/kit_report.h"

namespace mw {

constexpr int kit_processes = 2;  // that are started

struct TestedCommunicator {
  std::string name;
  std::vector<std::string> plugin_path;  // where the processes look for it
  std::string launcher;                  // see launcher_of (meshwright/carrier.h)
};

// Starts processes of this program over a communicator: mixes beside one rank, bytes and memory
// beside the prediction, and what the others say when one is killed.
void check_communicator(const TestedCommunicator& communicator, KitReport& report);

}  // namespace mw
