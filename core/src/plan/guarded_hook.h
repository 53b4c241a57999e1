// Reductions that a plugin brings, with the plugin's name on what they throw.
#pragma once

#include "base/plugin_call.h"
#include "meshwright/program.h"

namespace mw {

// Of every bucket whose hook has no name on it yet.
void guard_hooks(Program& program, const Speaker& speaker);

}  // namespace mw
