// What a plugin's file says of itself, read without running any of its code.
#pragma once

#include <filesystem>

#include "meshwright/engine/registry.h"

namespace mw {

// The name under which a plugin exports its descriptor.
inline constexpr const char* descriptor_symbol = "meshwright_plugin";

// Says why the file cannot be loaded as a plugin: it is no module, it is cut off, or it exports no
// descriptor. A verdict without a code says that nothing is known against it. The descriptor is
// null either way. No byte beyond the file's end is read, whatever its tables say.
ModuleVerdict look_into_module(const std::filesystem::path& file);

}  // namespace mw
