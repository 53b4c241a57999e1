// Asks the system how much memory this process may use: the machine's, or what its control
// groups leave of it.
#include "predict/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace mw {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

// The number in a file; no limit if it has no number ("max") or is not there.
// Version 1 writes a huge one for no limit.
std::int64_t limit_in(const fs::path& file) {
  std::ifstream stream(file);
  std::uint64_t bytes = 0;
  if (!(stream >> bytes) || bytes == 0 || bytes > static_cast<std::uint64_t>(no_limit))
    return no_limit;
  return static_cast<std::int64_t>(bytes);
}

// The lowest limit of a group and of those around it. Inside a container its own group is often
// mounted as the outermost, under a path that is not there.
std::int64_t lowest(const fs::path& mounted, fs::path group, const char* name) {
  std::int64_t least = limit_in(mounted / name);
  for (group = group.relative_path(); !group.empty(); group = group.parent_path()) {
    least = std::min(least, limit_in(mounted / group / name));
  }
  return least;
}

std::int64_t of_groups(const fs::path& root) {
  const fs::path mounted = root / "sys/fs/cgroup";
  std::int64_t least = std::min(limit_in(mounted / "memory.max"),
                                limit_in(mounted / "memory/memory.limit_in_bytes"));
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/a/b", or "4:memory:/a/b" in version 1
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    std::stringstream controllers(line.substr(first + 1, second - first - 1));
    if (second == first + 1) {
      least = std::min({least, lowest(mounted, group, "memory.max"),
                        lowest(mounted / "unified", group, "memory.max")});
    }
    for (std::string controller; std::getline(controllers, controller, ',');) {
      if (controller == "memory")
        least = std::min(least, lowest(mounted / "memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

std::int64_t of_machine(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "MemTotal:" && file >> kibibytes) return kibibytes * 1024;
  }
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

std::int64_t of_process() {
  std::int64_t least = no_limit;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    least = std::min(least, static_cast<std::int64_t>(
                                std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(no_limit))));
  }
  return least;
}

}  // namespace

std::int64_t machine_memory(const fs::path& root) {
  return std::min({of_machine(root), of_groups(root), root == "/" ? of_process() : no_limit});
}

}  // namespace mw
