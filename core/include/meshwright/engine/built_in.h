// What the program brings itself, registered as plugins register theirs.
#pragma once

#include "meshwright/plugin.h"

namespace mw {

// Its name is "meshwright". The same object at every call.
const PluginDescriptor& built_in();

}  // namespace mw
