// JSON files that other processes may be replacing.
#pragma once

#include <filesystem>

#include "meshwright/json.h"

namespace mw {

// Null if there is none, or it is no JSON.
Json read_json(const std::filesystem::path& file);

}  // namespace mw
