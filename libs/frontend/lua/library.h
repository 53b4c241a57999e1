// Calls functions of the Lua library that make texts of the program's values.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "meshwright/json.h"

namespace mw {

// A function that a file of the library may call, with the list of its arguments.
using LibraryFunction = std::function<Json(const Json& arguments)>;

// Calls the function that meshwright/NAME.lua of the library returns, in a Lua state of its own,
// and returns its result. To the function `value` looks like a table; its keys keep their order,
// and null is nil. `functions` are the fields of the module "meshwright.format". Throws Error
// (environment) where the library lacks NAME, and std::runtime_error where `value` is not of the
// shape that the function reads.
Json call_library(const std::string& name, const Json& value,
                  const std::map<std::string, LibraryFunction>& functions);

}  // namespace mw
