// Tables that the program hands to scripts: arguments of their functions, and results of verbs.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "lua/state.h"
#include "lua/value.h"

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

int result_text(lua_State* lua) {
  auto& result =
      State::of(lua).results.at(static_cast<std::size_t>(lua_tointeger(lua, lua_upvalueindex(1))));
  result.printed = true;
  lua_pushlstring(lua, result.text.data(), result.text.size());
  return 1;
}

int result_field(lua_State* lua) {
  if (lua_type(lua, 2) == LUA_TSTRING) State::of(lua).missed = lua_tostring(lua, 2);
  return 0;
}

}  // namespace

void push_argument(lua_State* lua, const Json& argument) {
  push_json(lua, argument);
  if (!argument.is_object() || !argument.contains("name")) return;
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, unknown_field);
  lua_setfield(lua, -2, "__index");
  lua_setmetatable(lua, -2);
}

void push_result(lua_State* lua, const Json& result) {
  push_json(lua, result);
  if (!result.is_object()) return;
  lua_createtable(lua, 0, 2);
  lua_pushcfunction(lua, result_field);
  lua_setfield(lua, -2, "__index");
  if (result.contains("text") && result["text"].is_string()) {
    State& state = State::of(lua);
    std::string text = result["text"].get<std::string>();
    text.erase(text.find_last_not_of('\n') + 1);  // print adds one
    state.results.push_back({std::move(text), false});
    lua_pushinteger(lua, static_cast<lua_Integer>(state.results.size()) - 1);
    lua_pushcclosure(lua, result_text, 1);
    lua_setfield(lua, -2, "__tostring");
  }
  lua_setmetatable(lua, -2);
}

}  // namespace mw
