// Whether the ranks of a script can be shared among the processes that are to be started for it.
#pragma once

#include <string>

#include "app/script_command.h"

namespace mw {

// Throws Error (plan, "launch.ranks") if --processes does not fit the first experiment that the
// script runs, before a process is started. Whether it fits is found by a copy of this process, in
// which the script comes as far as that experiment and may neither write files nor start programs.
// What cannot be found that way is found by the processes.
void check_processes(const ScriptArguments& arguments, const std::string& train_as);

}  // namespace mw
