// Finds files that describe clusters, and what they say of themselves.
#include "plugin/cluster_files.h"

#include <algorithm>
#include <fstream>

namespace mw {
namespace fs = std::filesystem;

std::vector<ClusterFile> cluster_files(const fs::path& folder, const std::string& ending) {
  std::vector<ClusterFile> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(ending) || name.size() == ending.size()) continue;
    std::string line;
    std::ifstream in(entry->path());
    std::getline(in, line);
    const auto first = line.find_first_not_of("- ");
    const bool told = line.starts_with("--") && first != std::string::npos;
    found.push_back({name.substr(0, name.size() - ending.size()), entry->path(),
                     told ? line.substr(first) : ""});
  }
  std::sort(found.begin(), found.end(),
            [](const ClusterFile& a, const ClusterFile& b) { return a.name < b.name; });
  return found;
}

}  // namespace mw
