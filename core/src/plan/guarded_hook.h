// Wraps a plugin's reduction hook, so that whatever it throws names the plugin.
#pragma once

#include "meshwright/engine/plugin_call.h"
#include "meshwright/program.h"

namespace mw {

// For every bucket whose hook has no name on it yet.
void guard_hooks(Program& program, const Speaker& speaker);

}  // namespace mw
