// Texts that the Lua library makes of values that the program has.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "meshwright/json.h"

namespace mw {

// What a file of the library may call: it takes the list of its arguments.
using LibraryFunction = std::function<Json(const Json& arguments)>;

// Calls the function that meshwright/NAME.lua of the library returns, in a Lua state of its own,
// and returns its result. Throws Error (environment) where the library lacks it, and
// std::runtime_error where `value` is not of the shape that the function reads. There `value` is
// read as a table is; its keys keep their order, and null is nil. `functions` are the fields of the
// module "meshwright.format".
Json call_library(const std::string& name, const Json& value,
                  const std::map<std::string, LibraryFunction>& functions);

}  // namespace mw
