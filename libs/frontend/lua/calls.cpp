// Reads settings, calls a script's functions, and gives errors the places of what is at fault.
#include "lua/calls.h"

#include <fmt/format.h>
#include <algorithm>

#include "lua/host.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {

Error with_places(const Error& error, const std::function<std::string(const Problem&)>& place) {
  std::vector<Problem> problems = error.problems();
  for (Problem& problem : problems) {
    if (problem.stage == Stage::run || problem.stage == Stage::environment) continue;
    if (problem.place.empty()) problem.place = place(problem);
  }
  return Error(std::move(problems));
}

namespace {

// The value of the Lua expression after `--set key=`.
Json evaluated(lua_State* lua, const Setting& setting) {
  // A sandbox hides this module in the registry.
  if (lua_getfield(lua, LUA_REGISTRYINDEX, "meshwright.settings") == LUA_TNIL) {
    lua_pop(lua, 1);
    lua_getglobal(lua, "require");
    lua_pushstring(lua, "meshwright.settings");
    protected_call(lua, 1, 1);
  }
  lua_pushstring(lua, setting.text.c_str());
  try {
    protected_call(lua, 1, 1);
  } catch (const Error& error) {
    const Problem& first = error.problems().front();
    const bool known = !first.hint.empty() && first.code != "script.error";
    throw Error(Problem{Stage::options, "set.value", setting.key,
                        known || first.place == "--set:1" ? first.message : first.text(),
                        known ? first.hint : "the value is a number, a word, or a Lua expression",
                        place_of_setting(setting.given)});
  }
  Json value = to_json(lua, -1, setting.key);
  lua_pop(lua, 1);
  return value;
}

}  // namespace

void read_settings(lua_State* lua, Script::State& state) {
  if (state.settings_read) return;
  state.settings_read = true;
  Problems problems;  // problems of all settings
  const int top = lua_gettop(lua);
  for (const std::string& given : state.options.settings) {
    try {
      Setting setting = parse_setting(given);
      const auto other = state.options.given_as.find(given);
      if (other != state.options.given_as.end()) setting.given = other->second;
      if (!read_plainly(setting.text, setting.value)) setting.value = evaluated(lua, setting);
      state.settings.push_back(std::move(setting));
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      lua_settop(lua, top);
      problems.add(error);
    }
  }
  problems.throw_if_any();
}

Json call_function(Script::State& state, std::int64_t number, const std::vector<Json>& arguments) {
  const std::lock_guard lock(state.calling);
  // Functions may be called after their verb: then on the main Lua thread.
  lua_State* lua = state.waiting != nullptr ? state.waiting : state.lua;
  const int top = lua_gettop(lua);
  state.watch.enter();
  try {
    if (!push_function(lua, number)) {
      throw Error(Stage::run, "run.internal", "",
                  fmt::format("there is no script function number {}", number));
    }
    state.watch.calls(lua);
    luaL_checkstack(lua, static_cast<int>(arguments.size()) + 4, "too many arguments");
    for (const Json& argument : arguments) push_argument(lua, argument);
    protected_call(lua, static_cast<int>(arguments.size()), 1);
    state.watch.throw_if_given_up();  // even if the script caught the error
    Json result = to_json(lua, -1, "the function's result");
    lua_settop(lua, top);
    state.watch.leave(lua);
    return result;
  } catch (...) {
    lua_settop(lua, top);
    state.watch.leave(lua);
    state.watch.throw_if_given_up();
    throw;
  }
}

namespace {

using State = Script::State;

// __index: raises the error for a field that the table lacks. A script can call this with anything.
int unknown_field(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TTABLE);
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
