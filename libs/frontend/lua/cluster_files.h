// Files that describe clusters (clusters/NAME.lua, NAME.cluster.lua of the plugin path).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

struct ClusterFile {
  std::string name;  // file name without its ending
  std::filesystem::path file;
  std::string doc;  // first sentence of the file's opening comment
};

// The ending of a user's own cluster files: hall.cluster.lua.
inline constexpr const char* cluster_ending = ".cluster.lua";

// The files of `folder` with this ending, by name; none if the folder does not exist.
std::vector<ClusterFile> cluster_files(const std::filesystem::path& folder,
                                       const std::string& ending);

}  // namespace mw
