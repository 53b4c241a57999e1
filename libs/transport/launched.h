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

// The value of an environment variable, or null. Tests bring values of their own.
using Environment = std::function<const char*(const char* name)>;
const char* own_variable(const char* name);

// Nothing if this process was started alone, as the only one, or by a launcher whose variables do
// not say which of how many processes it is. Throws Error (environment, "launch.address") if two
// launchers number it differently.
std::optional<Launch> launched(const Environment& variable = own_variable);
// For a process that is about to train by itself, as launched() says nothing. Throws Error
// (environment, "launch.address") if it is one of several all the same.
void refuse_lone_member(const Environment& variable = own_variable);

}  // namespace mw
