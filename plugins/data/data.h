// The sources of tokens that are built in.
#pragma once

#include <vector>

#include "meshwright/data.h"

namespace mw {

std::vector<Registration> built_in_data();

}  // namespace mw
