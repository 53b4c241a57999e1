// The one value type for script tables, options and results: JSON that keeps the order of keys.
// A Lua function inside a script table travels as {"$function": n}; the script host calls number n.
#pragma once

#include <nlohmann/json.hpp>

namespace mw {

using Json = nlohmann::ordered_json;

}  // namespace mw
