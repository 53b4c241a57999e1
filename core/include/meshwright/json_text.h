// Writes JSON as text, whatever bytes its strings hold.
#pragma once

#include <string>

#include "meshwright/json.h"

namespace mw {

// On one line, or indented by so many spaces. Bytes that are no UTF-8 (a path, a name from
// elsewhere) become U+FFFD; Json's own dump() throws for them.
std::string json_text(const Json& value, int indent = -1);

}  // namespace mw
