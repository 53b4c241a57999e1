// Functions of a script as Json: numbers under which the script's state keeps them.
#include "lua/value.h"

#include <fmt/format.h>

#include "lua/code.h"
#include "luajson/luajson.h"

namespace mw {
namespace {

// Registry key of two tables: function -> number, and number -> function.
const char functions_key = 0;

void push_functions(lua_State* lua) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &functions_key) == LUA_TTABLE) return;
  lua_pop(lua, 1);
  lua_newtable(lua);
  lua_pushvalue(lua, -1);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &functions_key);
}

// A number for a Lua function. A function always gets one number, and so equal tables give equal
// Json.
std::int64_t number_of_function(lua_State* lua, int index) {
  index = lua_absindex(lua, index);
  push_functions(lua);
  lua_pushvalue(lua, index);
  if (lua_rawget(lua, -2) != LUA_TNUMBER) {
    lua_pop(lua, 1);
    const auto number = static_cast<lua_Integer>(lua_rawlen(lua, -1)) + 1;
    lua_pushvalue(lua, index);
    lua_rawseti(lua, -2, number);
    lua_pushvalue(lua, index);
    lua_pushinteger(lua, number);
    lua_rawset(lua, -3);
    lua_pushinteger(lua, number);
  }
  const lua_Integer number = lua_tointeger(lua, -1);
  lua_pop(lua, 2);
  return number;
}

// Where a function begins: "script.lua:12"; "C" for a C function.
std::string definition_of(lua_State* lua, int index) {
  lua_Debug info;
  lua_pushvalue(lua, index);
  lua_getinfo(lua, ">S", &info);
  if (info.linedefined < 0) return "C";
  std::string source = info.source;
  if (source.starts_with('@') || source.starts_with('=')) source.erase(0, 1);
  return fmt::format("{}:{}", source.substr(0, source.find('\n')), info.linedefined);
}

Json function_to_json(lua_State* lua, int index) {
  return {{function_key, number_of_function(lua, index)},
          {code_key, code_of_function(lua, index, /*tables=*/true)},
          {plain_code_key, code_of_function(lua, index, /*tables=*/false)},
          {defined_key, definition_of(lua, index)}};
}

}  // namespace

Json to_json(lua_State* lua, int index, const std::string& path) {
  return json_from_lua(lua, index, path, function_to_json);
}

bool push_function(lua_State* lua, std::int64_t number) {
  push_functions(lua);
  const bool found = lua_rawgeti(lua, -1, number) == LUA_TFUNCTION;
  lua_remove(lua, -2);
  if (!found) lua_pop(lua, 1);
  return found;
}

void push_json(lua_State* lua, const Json& value, void (*each_table)(lua_State*)) {
  push_as_lua(lua, value, push_function, each_table);
}

}  // namespace mw
