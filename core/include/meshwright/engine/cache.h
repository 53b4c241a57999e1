// What was found out about this machine, kept in the user's cache folder from process to process.
#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

namespace mw {

// Not Json: to read thousands of keys that keep their order takes the square of their number.
using Cache = nlohmann::json;

// $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright.
std::filesystem::path cache_folder();
// An object: empty if there is no such file or it is damaged.
Cache read_cache(const std::filesystem::path& file);
// A file that cannot be written is not; a reader never sees half of one.
void write_cache(const std::filesystem::path& file, const Cache& cache);

}  // namespace mw
