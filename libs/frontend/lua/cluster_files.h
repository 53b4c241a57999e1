// Files that describe clusters (clusters/NAME.lua, NAME.cluster.lua of the plugin path).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mw {

struct ClusterFile {
  std::string name;  // the file's, without its ending
  std::filesystem::path file;
  std::string doc;  // its first line, if that is a comment
};

// How the files of one's own end: hall.cluster.lua.
inline constexpr const char* cluster_ending = ".cluster.lua";

// The files of `folder` that end so, by name. Folders that do not exist have none.
std::vector<ClusterFile> cluster_files(const std::filesystem::path& folder,
                                       const std::string& ending);

}  // namespace mw
