// Who started this process, as one of how many: what launchers leave in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mw {

struct Launch {
  std::string by;  // "mpirun", "srun", "torchrun"
  int processes = 1;
  int process = 0;
  std::string communicator;  // that connects such processes, unless another one is named
};

// Nothing if this process was started alone, or as the only one. Throws Error (environment,
// "launch.address") if it is one of several by variables that do not say which, or of how many.
std::optional<Launch> launched();
// The same by another environment, for tests.
std::optional<Launch> launched(const std::function<const char*(const char*)>& variable);

}  // namespace mw
