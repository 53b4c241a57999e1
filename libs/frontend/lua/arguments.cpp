// Hands arguments to functions of scripts: tables in which an unknown field is an error.
#include <fmt/format.h>

#include <algorithm>

#include "lua/host.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

using State = Script::State;

// A field that the table lacks.
int unknown_field(lua_State* lua) {
  const std::string key = luaL_tolstring(lua, 2, nullptr);
  std::vector<std::string> known;
  for (lua_pushnil(lua); lua_next(lua, 1) != 0; lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) known.emplace_back(lua_tostring(lua, -2));
  }
  std::sort(known.begin(), known.end());
  const std::string near = did_you_mean(key, known);
  Problem problem{Stage::script,
                  "script.unknown",
                  "",
                  fmt::format("what the function is given has no field {}", key),
                  near.empty() ? "its fields: " + join(known) : near,
                  user_place(lua)};
  push_error(lua, Error(std::move(problem)));
  return lua_error(lua);
}

}  // namespace

void push_argument(lua_State* lua, const Json& argument) {
  push_json(lua, argument);
  if (!argument.is_object() || !argument.contains("name") || argument.contains(open_key)) return;
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, unknown_field);
  lua_setfield(lua, -2, "__index");
  lua_setmetatable(lua, -2);
}

}  // namespace mw
