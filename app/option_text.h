// Declared options as JSON.
#pragma once

#include <string>

#include "meshwright/engine/registry.h"
#include "meshwright/options.h"

namespace mw {

Json options_json(const Options& options);

// The type annotations of the Lua module with these plugins, as `lua-types` prints them.
std::string lua_types(PluginRegistry& plugins);

}  // namespace mw
