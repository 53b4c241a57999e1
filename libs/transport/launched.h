// Reads from the environment which launcher started this process, and as which of how many.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace mw {

struct Launch {
  std::string by;  // the launcher: "mpirun", "srun", "torchrun"
  int processes = 1;
  int process = 0;
  std::string communicator;  // the communicator for these processes, unless the user names one
};

// The value of an environment variable, or null. Tests bring values of their own.
using Environment = std::function<const char*(const char* name)>;
const char* own_variable(const char* name);

// Nullopt if this process was started alone, as the only one, or by a launcher whose variables do
// not say which of how many processes it is. Throws Error (environment, "launch.address") if two
// launchers number it differently.
std::optional<Launch> launched(const Environment& variable = own_variable);
// For a process that is about to train alone because launched() returned nothing. Throws Error
// (environment, "launch.address") if it is one of several after all.
void refuse_lone_member(const Environment& variable = own_variable);

}  // namespace mw
