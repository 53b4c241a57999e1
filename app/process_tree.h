// Processes of this machine: who started whom, and who runs this program.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace mw {

std::vector<pid_t> children_of(pid_t process);  // of all its threads; none if it is gone
bool runs_this_program(pid_t process);
// A variable of the environment with which it was started; empty if it has none of the name.
std::string variable_of(pid_t process, const std::string& name);

}  // namespace mw
