// What `meshwright doctor` finds.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/processes.h"
#include "meshwright/engine/registry.h"

namespace mw {

struct Finding {
  enum class Verdict { ok, warning, failed };
  std::string name;
  Verdict verdict = Verdict::ok;
  std::string found, hint;
};

// Compares the processes that a launcher has started, one for each device, before a run does: their
// programs and libraries, devices, network cards, and what their machines leave them. `given`: the
// kind of devices that a run would use; empty: the first kind that can be used. Returns the
// findings on the first process, and none on others.
std::vector<Finding> check_cluster(PluginRegistry& plugins, Processes& processes,
                                   const std::string& given);

}  // namespace mw
