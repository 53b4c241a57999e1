// Reads the control groups of this process, and the number of cores that these groups and the
// process' affinity allow.
#include "meshwright/engine/control_groups.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

namespace mw {

namespace fs = std::filesystem;

namespace {

// Adds a control group and all groups around it, up to the mount point.
void add_groups(std::vector<ControlGroup>& all, const fs::path& mounted, const fs::path& innermost,
                bool first_version) {
  for (fs::path group = innermost;; group = group.parent_path()) {
    all.push_back({group.empty() ? mounted : mounted / group, first_version});
    if (group.empty()) break;
  }
}

std::vector<int> read_affinity() {
  constexpr int most = 1 << 16;  // most processors: sched_getaffinity fails if the set is too small
  for (int room = 1024; room <= most; room *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(room));
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(room));
    // The cores of the process's first thread: a rank's thread may be bound to one of them.
    const bool known = sched_getaffinity(::getpid(), bytes, set) == 0;
    std::vector<int> processors;
    for (int processor = 0; known && processor < room; ++processor)
      if (CPU_ISSET_S(static_cast<std::size_t>(processor), bytes, set))
        processors.push_back(processor);
    CPU_FREE(set);
    if (known) return processors;
  }
  return {};
}

// Seconds of CPU time that a control group gets per second; infinity: no limit.
double cores_of(const ControlGroup& group) {
  double quota = 0, period = 0;
  if (group.first_version) {
    std::ifstream(group.folder / "cpu.cfs_quota_us") >> quota;  // -1: no limit
    std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  } else {
    std::ifstream(group.folder / "cpu.max") >> quota >> period;  // "max 100000": no limit
  }
  const bool limited = quota > 0 && period > 0;
  return limited ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

fs::path system_root() {
  const char* named = std::getenv("MESHWRIGHT_SYSTEM_ROOT");
  return named != nullptr && *named != '\0' ? named : "/";
}

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
  const fs::path mounted = root / "sys/fs/cgroup";
  std::vector<ControlGroup> all;
  std::ifstream groups(root / "proc/self/cgroup");  // "0::/a/b", or "4:memory:/a/b" in version 1
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const fs::path group = fs::path(line.substr(second + 1)).relative_path();
    if (second == first + 1) {
      add_groups(all, mounted, group, false);
      add_groups(all, mounted / "unified", group, false);
    }
    std::stringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string each; std::getline(controllers, each, ',');) {
      if (each == controller) add_groups(all, mounted / controller, group, true);
    }
  }
  if (all.empty()) all = {{mounted, false}, {mounted / controller, true}};
  return all;
}

const std::vector<int>& allowed_processors() {
  static const std::vector<int> processors = read_affinity();
  return processors;
}

int allowed_cores(const fs::path& root) {
  const auto processors = allowed_processors().empty()
                              ? static_cast<double>(std::thread::hardware_concurrency())
                              : static_cast<double>(allowed_processors().size());
  double cores = processors;
  for (const ControlGroup& group : control_groups("cpu", root))
    cores = std::min(cores, std::ceil(cores_of(group)));
  return std::max(1, static_cast<int>(cores));
}

}  // namespace mw
