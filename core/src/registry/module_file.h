// What a plugin's file says of itself, read without running any of its code.
#pragma once

#include <filesystem>

#include "meshwright/engine/registry.h"

namespace mw {

// Why the file cannot be loaded as a plugin: it is none, it is cut off, or no part of it is the
// descriptor. Without a code: it can be loaded, for all that is known. The descriptor is null
// either way. Reads no byte that the file has not, whatever it says.
ModuleVerdict look_into_module(const std::filesystem::path& file);

}  // namespace mw
