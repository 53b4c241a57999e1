// Asks the system, which shows its processes as folders under /proc.
#include "app/process_tree.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <system_error>

#include "meshwright/engine/share.h"

namespace mw {

namespace fs = std::filesystem;

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> found;
  std::error_code error;
  const fs::path tasks = fmt::format("/proc/{}/task", process);
  for (fs::directory_iterator task(tasks, error), end; !error && task != end;
       task.increment(error)) {
    std::ifstream children(task->path() / "children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

bool runs_this_program(pid_t process) {
  std::error_code gone;
  return fs::read_symlink(fmt::format("/proc/{}/exe", process), gone) == program_path();
}

std::string variable_of(pid_t process, const std::string& name) {
  std::ifstream file(fmt::format("/proc/{}/environ", process), std::ios::binary);
  for (std::string line; std::getline(file, line, '\0');) {
    if (line.starts_with(name + "=")) return line.substr(name.size() + 1);
  }
  return "";
}

}  // namespace mw
