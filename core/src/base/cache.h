// What was found out about this machine, kept in the user's cache folder from process to process.
#pragma once

#include <filesystem>

#include "meshwright/json.h"

namespace mw {

// $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright.
std::filesystem::path cache_folder();
// An object: empty if there is no such file or it is damaged.
Json read_cache(const std::filesystem::path& file);
// A file that cannot be written is not; a reader never sees half of one.
void write_cache(const std::filesystem::path& file, const Json& json);

}  // namespace mw
