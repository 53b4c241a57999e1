// Runs a condition on a list's rows in a Lua state of its own, in which there is nothing else.
#include "lua/script.h"

#include <fmt/format.h>

#include <lua.hpp>
#include <optional>
#include <vector>

#include "lua/sandbox.h"
#include "lua/value.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

struct Predicate::State {
  std::string asked_by, text;
  std::set<std::string> fields;
  lua_State* lua = nullptr;
  const Json* row = nullptr;
  bool lacked = false;                 // a field was read that the row lacks
  std::optional<std::string> unknown;  // a field that no row can have
  LuaMemory memory{std::size_t{64} << 20};
};

namespace {

constexpr int most_instructions = 5'000'000;

void stop_running(lua_State* lua, lua_Debug*) {
  luaL_error(lua, "it does not end");
}

Predicate::State& state_of(lua_State* lua) {
  return **static_cast<Predicate::State**>(lua_getextraspace(lua));
}

int lacking(lua_State* lua) {
  state_of(lua).lacked = true;
  return 0;
}

// Tables of the row set `lacked` where a field is read that they lack.
void push_value(lua_State* lua, const Json& value) {
  push_json(lua, value, [](lua_State* state) {
    lua_createtable(state, 0, 1);
    lua_pushcfunction(state, lacking);
    lua_setfield(state, -2, "__index");
    lua_setmetatable(state, -2);
  });
}

int field_of_row(lua_State* lua) {
  Predicate::State& state = state_of(lua);
  const std::string key = luaL_tolstring(lua, 2, nullptr);
  lua_pop(lua, 1);
  if (state.row->contains(key) && !(*state.row)[key].is_null()) {
    push_value(lua, (*state.row)[key]);
    return 1;
  }
  if (state.fields.count(key) > 0) {
    state.lacked = true;
    return 0;
  }
  state.unknown = key;
  return luaL_error(lua, "there is no field %s", key.c_str());
}

void keep_to(lua_State* lua) {
  lua_newtable(lua);  // what the condition sees beside the row
  for (const char* name : {"math", "string", "type", "tonumber", "tostring", "ipairs", "pairs"}) {
    lua_getglobal(lua, name);
    lua_setfield(lua, -2, name);
  }
  double unit = 1;
  for (const char* name : {"KiB", "MiB", "GiB", "TiB"}) {
    lua_pushnumber(lua, unit *= 1024);
    lua_setfield(lua, -2, name);
  }
  lua_createtable(lua, 0, 1);
  lua_pushcfunction(lua, field_of_row);
  lua_setfield(lua, -2, "__index");
  lua_setmetatable(lua, -2);
}

// A single "=" is a common slip; Lua's own words for it are odd.
bool assigns(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '=') continue;
    if (i + 1 < text.size() && text[i + 1] == '=') {
      ++i;
    } else if (i == 0 || std::string_view("<>~").find(text[i - 1]) == std::string_view::npos) {
      return true;
    }
  }
  return false;
}

// Lua's message without the place "where:1: ".
std::string bare(std::string message) {
  const std::string place = "where:1: ";
  if (message.starts_with(place)) message.erase(0, place.size());
  return message;
}

}  // namespace

Predicate::Predicate(std::string asked_by, std::string text, std::set<std::string> fields)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.asked_by = std::move(asked_by);
  state.text = std::move(text);
  state.fields = std::move(fields);
  state.lua = new_bounded_state(state.memory);
  if (state.lua == nullptr) throw std::bad_alloc();
  lua_State* lua = state.lua;
  *static_cast<State**>(lua_getextraspace(lua)) = &state;
  luaL_requiref(lua, "_G", luaopen_base, 1);
  luaL_requiref(lua, "string", luaopen_string, 1);
  luaL_requiref(lua, "math", luaopen_math, 1);
  lua_settop(lua, 0);
  const std::string chunk = "return " + state.text;
  if (luaL_loadbufferx(lua, chunk.data(), chunk.size(), "=where", "t") != LUA_OK) {
    throw Error(Stage::options, "where.syntax", "",
                fmt::format("{} {}: it is no Lua expression: {}", state.asked_by, state.text,
                            bare(lua_tostring(lua, -1))),
                assigns(state.text) ? "two values are compared with =="
                                    : "for example 'loss < 2.5 and status == \"done\"'");
  }
  keep_to(lua);
  lua_setupvalue(lua, 1, 1);
}

Predicate::~Predicate() {
  lua_close(state_->lua);
}

Predicate::Answer Predicate::operator()(const Json& row) {
  State& state = *state_;
  lua_State* lua = state.lua;
  state.row = &row;
  state.lacked = false;
  state.unknown.reset();
  lua_settop(lua, 1);
  lua_sethook(lua, stop_running, LUA_MASKCOUNT, most_instructions);
  lua_pushvalue(lua, 1);
  const int status = lua_pcall(lua, 0, 1, 0);
  lua_sethook(lua, nullptr, 0, 0);
  if (status == LUA_OK) return lua_toboolean(lua, -1) != 0 ? Answer::yes : Answer::no;
  if (state.unknown) {
    const std::vector<std::string> names(state.fields.begin(), state.fields.end());
    throw Error(Stage::options, "where.field", "",
                fmt::format("{} {}: a run has no field {}", state.asked_by, state.text,
                            quote(*state.unknown)),
                nearest_or_all(*state.unknown, names));
  }
  if (state.lacked) return Answer::lacks;
  throw Error(
      Stage::options, "where.error", "",
      fmt::format("{} {}: {}", state.asked_by, state.text, bare(luaL_tolstring(lua, -1, nullptr))),
      "for example 'loss < 2.5 and status == \"done\"'");
}

}  // namespace mw
