// Keeps errors that plugins threw while the program only tried them, so that a command can report
// them. A strategy that is only tried is left out after a refusal and after a fault, and the user
// would not hear of the fault otherwise.
#pragma once

#include <string>
#include <vector>

#include "meshwright/error.h"

namespace mw {

// Notes that a plugin threw something that is no refusal, while it `did` what the text says
// ("edited the plan"). Only the first fault of each plugin and call is kept. Any thread may call.
void keep_plugin_fault(const std::string& plugin, const std::string& did,
                       const std::string& message);

// Returns the messages of all faults since the last call, except those that `said` reports already.
std::vector<std::string> take_plugin_faults(const std::vector<Problem>& said = {});

// A note for users about a fault of a plugin that was only tried.
std::string tried_and_broke(const std::string& message);

}  // namespace mw
