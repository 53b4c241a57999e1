// The one value type for script tables, options and results: JSON that keeps the order of keys.
// A Lua function inside a script table travels as {"$function": n}; the script host calls number n.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mw {

using Json = nlohmann::ordered_json;

// Writes JSON as text, whatever bytes its strings hold: on one line, or indented by so many spaces.
// Bytes that are no UTF-8 (a path, a name from elsewhere) become U+FFFD; Json's own dump() throws
// for them.
std::string json_text(const Json& value, int indent = -1);

}  // namespace mw
