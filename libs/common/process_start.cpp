// Asks the system when a process was started.
#include "common/process_start.h"

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "common/whole_file.h"

namespace mw {

std::optional<unsigned long long> process_start(int process) {
  const auto stat = whole_file(fmt::format("/proc/{}/stat", process));
  if (!stat) return std::nullopt;
  // The name in field 2 may hold spaces. Field 3 is the state, 22 the start.
  const std::size_t name = stat->rfind(')');
  if (name == std::string::npos) return std::nullopt;
  std::istringstream fields(stat->substr(name + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) {
    if (!(fields >> field) || (i == 3 && field == "Z")) return std::nullopt;
  }
  unsigned long long ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  return ticks;
}

}  // namespace mw
