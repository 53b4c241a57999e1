// A file's content in one piece.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace mw {

// All bytes of a file; none if it is not there or cannot be read to its end. For files that fit
// memory many times.
std::optional<std::string> whole_file(const std::filesystem::path& path);

}  // namespace mw
