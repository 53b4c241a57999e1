// Asks the system and the libraries what a run runs on.
#include "app/machine_facts.h"

#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>

#include "lua/script.h"
#include "meshwright/engine/cpu.h"
#include "meshwright/plugin.h"
#include "predict/device.h"
#include "record/hdf5_file.h"

namespace mw {

Json machine_json(const Experiment& experiment, PluginRegistry& plugins) {
  Json machine;
  utsname system{};
  if (::uname(&system) == 0) {
    machine["host"] = system.nodename;
    machine["os"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  machine["cpu"] = cpu_model();
  machine["cores"] = core_count();
  machine["instruction_set"] = at::get_cpu_capability();
  machine["memory"] = this_device().memory;
  machine["versions"] = {{"meshwright", MESHWRIGHT_VERSION},
                         {"torch", TORCH_VERSION},
                         {"hdf5", hdf5_version().running},
                         {"lua", lua_release()},
                         {"toolchain", toolchain}};
  machine["plugins"] = Json::object();
  const std::vector<std::string> there = plugins.names();
  for (const StrategyChoice& choice : experiment.plan->request.strategies) {
    // A script's own strategy has no version, nor what was loaded by its path and is not on it.
    if (std::find(there.begin(), there.end(), choice.name) != there.end())
      machine["plugins"][choice.name] = plugins.plugin(choice.name).version;
  }
  return machine;
}

}  // namespace mw
