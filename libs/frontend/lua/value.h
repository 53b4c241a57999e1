// Lua values as Json and back. Only files of libs/frontend/lua include it: it includes lua.hpp.
#pragma once

#include <lua.hpp>
#include <string>

#include "meshwright/json.h"

namespace mw {

// The value at `index`. `path` names it in errors ("experiment", "plan[2]"). Integers and floats
// stay apart; a table with entries 1..n is a list; one with names too keeps its list under
// "$value"; names come sorted, for Lua keeps no order; functions are kept in Lua's registry. Throws
// Error (script) on a table that contains itself, a list with holes, keys that are no names,
// threads and userdata.
Json to_json(lua_State* lua, int index, const std::string& path);

// Pushes `value`; {"$function": n} becomes the function again, null becomes nil. `each_table` is
// called with every table that is made, filled, on top of the stack.
void push_json(lua_State* lua, const Json& value, void (*each_table)(lua_State*) = nullptr);

// Pushes function number n; false (and nothing pushed) if there is none.
bool push_function(lua_State* lua, std::int64_t number);

}  // namespace mw
