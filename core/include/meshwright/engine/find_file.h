// Where a file is that a script means by a path.
#pragma once

#include <filesystem>
#include <vector>

namespace mw {

// The path below the first of these folders in which it exists; an absolute one, and one that is in
// none of them, as it is.
std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::vector<std::filesystem::path>& folders);

}  // namespace mw
