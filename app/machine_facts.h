// Where a run ran: the machine and the versions of what computed.
#pragma once

#include "meshwright/engine/registry.h"
#include "script/experiment.h"

namespace mw {

// { host, os, cpu, cores, instruction_set, memory (bytes), versions = { meshwright, torch, hdf5,
// lua, toolchain }, plugins = { name = version } of those that the plan names }.
Json machine_json(const Experiment& experiment, PluginRegistry& plugins);

}  // namespace mw
