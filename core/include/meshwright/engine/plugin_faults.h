// Keeps errors that plugins threw while the program only tried them, so that a command can report
// them: a strategy that is only tried is left out by a refusal and by a fault alike.
#pragma once

#include <string>
#include <vector>

#include "meshwright/error.h"

namespace mw {

// Keeps that the plugin threw what is no refusal while it `did`. The first of each plugin and call
// stays. Any thread may call it.
void keep_plugin_fault(const std::string& plugin, const std::string& did,
                       const std::string& message);

// The messages of all that was kept since it was asked last, but of those that `said` says itself.
std::vector<std::string> take_plugin_faults(const std::vector<Problem>& said = {});

// As notes say it.
std::string tried_and_broke(const std::string& message);

}  // namespace mw
