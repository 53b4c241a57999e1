// Texts for people that the Lua library makes of what commands write as JSON.
#pragma once

#include <string>

#include "meshwright/json.h"

namespace mw {

// What the function of meshwright/texts/NAME.lua returns for `value`. It may use the functions of
// app/texts.cpp.
Json from_library(const std::string& name, const Json& value);

}  // namespace mw
