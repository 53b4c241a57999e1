// A hash of what a Lua function does, wherever it stands in its script.
#pragma once

#include <lua.hpp>
#include <string>

namespace mw {

// 16 hex digits over all that the function at `index` can reach: its code, what it closes over, the
// globals and the modules that it names, whatever these reach, and numbers to their last bit.
// Comments, lines and places count for nothing. Without `tables`, modules are the only tables that
// count: a function that collects in a table what it sees stays the same function.
std::string code_of_function(lua_State* lua, int index, bool tables);

// Registry key of the searcher of package.searchers that finds the Lua files of modules.
inline constexpr const char* searcher_key = "meshwright.searcher";

}  // namespace mw
