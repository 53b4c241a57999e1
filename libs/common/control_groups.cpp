// Reads which control groups this process is in.
#include "common/control_groups.h"

#include <fstream>
#include <sstream>
#include <string>

namespace mw {

namespace fs = std::filesystem;

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
  const fs::path mounted = root / "sys/fs/cgroup";
  std::vector<ControlGroup> all;
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/a/b", or "4:memory:/a/b" in version 1
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (second == first + 1) {
      all.push_back({mounted, group, false});
      all.push_back({mounted / "unified", group, false});
    }
    std::stringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string each; std::getline(controllers, each, ',');) {
      if (each == controller) all.push_back({mounted / controller, group, true});
    }
  }
  if (all.empty()) all = {{mounted, "", false}, {mounted / controller, "", true}};
  return all;
}

}  // namespace mw
