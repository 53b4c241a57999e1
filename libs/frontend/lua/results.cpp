// Hands results to scripts: tables that print as their text and refuse fields that they cannot
// have.
#include <fmt/format.h>

#include <algorithm>

#include "lua/guarded.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

using State = Script::State;

int result_text(lua_State* lua) {
  auto& result =
      State::of(lua).results.at(static_cast<std::size_t>(lua_tointeger(lua, lua_upvalueindex(1))));
  result.printed = true;
  lua_pushlstring(lua, result.text.data(), result.text.size());
  return 1;
}

// __index for a field that the result lacks: nil if results of its kind may have it (the second
// upvalue, a set), else an error with the nearest name. First upvalue: what the result is called.
int result_field(lua_State* lua) {
  if (lua_type(lua, 2) != LUA_TSTRING) return 0;
  State::of(lua).missed = lua_tostring(lua, 2);
  if (lua_type(lua, lua_upvalueindex(2)) != LUA_TTABLE) return 0;
  lua_pushvalue(lua, 2);
  if (lua_rawget(lua, lua_upvalueindex(2)) != LUA_TNIL) return 0;
  const std::string key = lua_tostring(lua, 2);
  std::vector<std::string> known;
  for (lua_pushnil(lua); lua_next(lua, lua_upvalueindex(2)) != 0; lua_pop(lua, 1))
    known.emplace_back(lua_tostring(lua, -2));
  std::sort(known.begin(), known.end());
  const std::string near = did_you_mean(key, known);
  throw Error(
      Problem{Stage::script, "script.unknown", "",
              fmt::format("{} has no field {}", lua_tostring(lua, lua_upvalueindex(1)), key),
              near.empty() ? "it has " + join(known) : near, user_place(lua)});
}

// Sets __index of the metatable on top of the stack. No `known`: any field may be read.
void check_fields(lua_State* lua, const std::string& called, const Json& result,
                  const std::vector<std::string>& known) {
  lua_pushlstring(lua, called.data(), called.size());
  if (known.empty()) {
    lua_pushnil(lua);
  } else {
    lua_newtable(lua);
    const auto knows = [&](const std::string& name) {
      lua_pushboolean(lua, 1);
      lua_setfield(lua, -2, name.c_str());
    };
    for (const std::string& name : known) knows(name);
    for (const auto& [name, value] : result.items()) knows(name);
  }
  lua_pushcclosure(lua, guarded<result_field>, 2);
  lua_setfield(lua, -2, "__index");
}

void push_text(lua_State* lua, std::string text, bool soon) {
  State& state = State::of(lua);
  text.erase(text.find_last_not_of('\n') + 1);  // print adds one
  state.results.push_back({std::move(text), false, soon, Json()});
  lua_pushinteger(lua, static_cast<lua_Integer>(state.results.size()) - 1);
  lua_pushcclosure(lua, result_text, 1);
}

// A value as a script writes it, over several lines where one would be too long.
std::string laid_out(const Json& value, std::size_t indent) {
  constexpr std::size_t widest = 100;
  std::string line = lua_text(value);
  const bool parts = value.is_array() || (value.is_object() && !value.contains(unnamed_key));
  if (!parts || is_function(value) || indent + line.size() <= widest) return line;
  std::string text = "{\n";
  for (const auto& [key, item] : value.items()) {
    if (value.is_object() && key.starts_with("$")) continue;
    const std::string name = value.is_object() ? key + " = " : "";
    text += fmt::format("{:{}}{}{},\n", "", indent + 2, name, laid_out(item, indent + 2));
  }
  return text + fmt::format("{:{}}}}", "", indent);
}

int table_text(lua_State* lua) {
  const std::string text = laid_out(to_json(lua, 1, "this table"), 0);
  lua_pushlstring(lua, text.data(), text.size());
  return 1;
}

// Makes each table in a result print as what it holds.
void make_readable(lua_State* lua) {
  if (luaL_newmetatable(lua, "meshwright.readable") != 0) {
    lua_pushcfunction(lua, guarded<table_text>);
    lua_setfield(lua, -2, "__tostring");
  }
  lua_setmetatable(lua, -2);
}

}  // namespace

void Script::State::show_results() {
  for (Result& result : results) {
    if (!result.soon || result.printed) continue;
    result.printed = true;
    host.show(result.text);
  }
}

void give_text(lua_State* lua, std::string text, bool soon) {
  lua_createtable(lua, 0, 1);
  push_text(lua, std::move(text), soon);
  if (!soon) State::of(lua).results.back().printed = true;
  lua_setfield(lua, -2, "__tostring");
  lua_setmetatable(lua, -2);
}

void push_result(lua_State* lua, const Json& result) {
  push_json(lua, result, make_readable);
  if (!result.is_object()) return;
  State& state = State::of(lua);
  const std::string kind = result.value("kind", "");
  std::vector<std::string> known = state.host.result_fields(kind);
  // Under `plan` and `verify` a script that was written for training reads nil of what they lack.
  if (!known.empty() && state.options.train_as != "train") {
    for (std::string& name : state.host.result_fields("train")) known.push_back(std::move(name));
  }
  lua_createtable(lua, 0, 2);
  check_fields(lua, fmt::format("the result of mw.{}", kind), result, known);
  if (!result.contains("text")) {
    lua_pushcfunction(lua, guarded<table_text>);
    lua_setfield(lua, -2, "__tostring");
  } else if (result["text"].is_string()) {
    push_text(lua, result["text"].get<std::string>(), /*soon=*/false);
    state.results.back().row = state.host.row_of(result);
    lua_setfield(lua, -2, "__tostring");
  }
  lua_setmetatable(lua, -2);
  const auto predicted = result.find("predicted");
  if (known.empty() || predicted == result.end() || !predicted->is_object()) return;
  lua_getfield(lua, -1, "predicted");
  lua_createtable(lua, 0, 2);
  check_fields(lua, "predicted", *predicted, state.host.result_fields("predicted"));
  lua_pushcfunction(lua, guarded<table_text>);
  lua_setfield(lua, -2, "__tostring");
  lua_setmetatable(lua, -2);
  lua_pop(lua, 1);
}

}  // namespace mw
