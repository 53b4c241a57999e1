// What a Lua function does, wherever it stands in its script.
#pragma once

#include <string>

namespace mw {

// `dump`: what lua_dump() writes of a function, stripped. Returns it without the numbers of the
// lines at which functions begin and end, the only ones that stripping leaves: a comment or an
// empty line above a function makes no other function of it. Throws Error (script) if this is no
// code of the Lua that the program is built with.
std::string code_without_lines(const std::string& dump);

}  // namespace mw
