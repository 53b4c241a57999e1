// Lua values as Json and back, for every state of Lua in the program.
#pragma once

#include <lua.hpp>
#include <string>

#include "meshwright/json.h"

namespace mw {

// What a function at `index` is as Json.
using FunctionToJson = Json (*)(lua_State*, int index);

// The value at `index`. `path` names it in errors ("experiment", "plan[2]"). Integers and floats
// stay apart; a table with entries 1..n is a list; one with names too keeps its list under
// "$value"; names come sorted, for Lua keeps no order. Throws Error (script) on a table that
// contains itself, a list with holes, keys that are no names, threads and userdata, and without
// `function` on functions.
Json json_from_lua(lua_State* lua, int index, const std::string& path,
                   FunctionToJson function = nullptr);

// Pushes the function with a number; returns false, and pushes nothing, if there is none.
using PushFunction = bool (*)(lua_State*, std::int64_t number);
// Called with every table that is made, filled, on top of the stack.
using EachTable = void (*)(lua_State*);

// Pushes `value`; null becomes nil, and {"$function": n} what `push_function` pushes.
void push_as_lua(lua_State* lua, const Json& value, PushFunction push_function = nullptr,
                 EachTable each_table = nullptr);

}  // namespace mw
