// The commands that run no script. Each returns the exit code.
#pragma once

#include <string>

#include "app/output.h"
#include "plugin/registry.h"

namespace mw {

// All plugins of the path: name, version, summary, file; broken ones with their reasons.
int list_plugins(PluginRegistry& plugins, Output& output);
// One plugin's options: types, ranges, defaults, docs.
int show_plugin(PluginRegistry& plugins, const std::string& name, Output& output);
// What this machine and this installation have; 5 if something is missing.
int doctor(PluginRegistry& plugins, Output& output);
// The type file for editors, to stdout.
int print_lua_types(PluginRegistry& plugins, Output& output);

// Its text: every constructor, verb, plugin and the experiment table as LuaLS annotations.
std::string lua_types(PluginRegistry& plugins);

}  // namespace mw
