// The one value type for script tables, options and results: JSON that keeps the order of keys.
// A Lua function inside a script table travels as {"$function": n}; the script host calls number n.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mw {

using Json = nlohmann::ordered_json;

// Writes JSON as text, on one line, or indented by `indent` spaces. Bytes of strings that are no
// UTF-8 (in a path, or a name from elsewhere) become U+FFFD, where Json::dump() would throw.
std::string json_text(const Json& value, int indent = -1);

}  // namespace mw
