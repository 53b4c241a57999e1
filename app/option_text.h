// Declared options as people and editors read them.
#pragma once

#include <string>

#include "meshwright/engine/registry.h"
#include "meshwright/options.h"

namespace mw {

std::string type_text(const Option& option);     // "integer", "size", "\"a\" | \"b\""
std::string range_text(const Option& option);    // ">= 1", "1 .. 8", ""
std::string default_text(const Option& option);  // "25 MiB", "required", "none"
// A table of all options: name, type, range, default, unit, what it does.
std::string options_text(const Options& options, const std::string& indent);
Json options_json(const Options& options);

// The type annotations of the Lua module with these plugins, as `lua-types` prints them.
std::string lua_types(PluginRegistry& plugins);

}  // namespace mw
