// Asks the system how much memory this process may use: the machine's, or what its control
// groups leave of it.
#include "predict/machine_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "common/control_groups.h"

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

// The lowest limit of a group and of those around it.
std::int64_t lowest(const MemoryGroup& of) {
  const char* const name = of.first_version ? "memory.limit_in_bytes" : "memory.max";
  std::int64_t least = limit_in(of.mounted / name);
  for (fs::path group = of.group; !group.empty(); group = group.parent_path()) {
    least = std::min(least, limit_in(of.mounted / group / name));
  }
  return least;
}

std::int64_t of_groups(const fs::path& root) {
  std::int64_t least = no_limit;
  for (const MemoryGroup& group : memory_groups(root)) least = std::min(least, lowest(group));
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
