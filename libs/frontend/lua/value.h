// Lua values as Json and back. Only files of libs/frontend/lua include it: it includes lua.hpp.
#pragma once

#include <lua.hpp>
#include <string>

#include "meshwright/json.h"

namespace mw {

// As json_from_lua() (luajson/luajson.h); functions are kept in Lua's registry, under a number.
Json to_json(lua_State* lua, int index, const std::string& path);

// As push_as_lua(); {"$function": n} becomes the function again.
void push_json(lua_State* lua, const Json& value, void (*each_table)(lua_State*) = nullptr);

// Pushes function number n; false (and nothing pushed) if there is none.
bool push_function(lua_State* lua, std::int64_t number);

}  // namespace mw
