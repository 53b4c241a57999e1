// Errors between C++ and Lua: an Error crosses as a userdata, a script's own message becomes one.
#include <fmt/format.h>

#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr const char* error_type = "meshwright.Error";
constexpr int most_levels = 100;
constexpr std::size_t most_places = 8;

Error& checked_error(lua_State* lua) {
  return *static_cast<Error*>(luaL_checkudata(lua, 1, error_type));
}

// __gc. A script may call this itself, and a finalizer of something else may still use the error
// after it.
int error_gc(lua_State* lua) {
  auto* const error = static_cast<Error*>(luaL_testudata(lua, 1, error_type));
  if (error == nullptr) return 0;
  lua_pushnil(lua);
  lua_setmetatable(lua, 1);
  error->~Error();
  return 0;
}

int error_text(lua_State* lua) {
  lua_pushstring(lua, checked_error(lua).what());
  return 1;
}

// __index: `problems` is the list of problems; any other field is nil.
int error_field(lua_State* lua) {
  const Error& error = checked_error(lua);
  if (lua_type(lua, 2) != LUA_TSTRING || std::string_view(lua_tostring(lua, 2)) != "problems")
    return 0;
  Json list = Json::array();
  for (const Problem& problem : error.problems()) list.push_back(json_of(problem));
  push_json(lua, list);
  return 1;
}

// "script.lua:12" of one level of the stack; empty for C functions and the library's own files.
std::string place_of_level(lua_State* lua, lua_Debug& frame) {
  lua_getinfo(lua, "Sl", &frame);
  if (frame.currentline <= 0 || frame.source == nullptr) return "";
  std::string source = frame.source;
  if (!library_file(lua, source).empty()) return "";
  if (source.starts_with("@") || source.starts_with("=")) source.erase(0, 1);
  return fmt::format("{}:{}", source, frame.currentline);
}

}  // namespace

std::string library_file(lua_State* lua, std::string_view source) {
  const std::string folder = "@" + Script::State::of(lua).options.library.string() + "/meshwright/";
  return source.starts_with(folder) ? std::string(source.substr(folder.size())) : "";
}

std::string user_place(lua_State* lua) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(lua, level, &frame) != 0; ++level) {
    std::string place = place_of_level(lua, frame);
    if (!place.empty()) return place;
  }
  return "";
}

void push_error(lua_State* lua, const Error& error) {
  new (lua_newuserdatauv(lua, sizeof(Error), 0)) Error(error);
  if (luaL_newmetatable(lua, error_type) != 0) {
    lua_pushcfunction(lua, error_gc);
    lua_setfield(lua, -2, "__gc");
    lua_pushcfunction(lua, error_text);
    lua_setfield(lua, -2, "__tostring");
    lua_pushcfunction(lua, error_field);
    lua_setfield(lua, -2, "__index");
  }
  lua_setmetatable(lua, -2);
}

namespace {

// The value that a script raised, in words; never an address.
std::string raised_text(lua_State* lua, int index) {
  const int type = lua_type(lua, index);
  const bool prints = luaL_getmetafield(lua, index, "__tostring") != LUA_TNIL;
  if (prints) lua_pop(lua, 1);
  if (prints || type < LUA_TTABLE) {
    std::string text = luaL_tolstring(lua, index, nullptr);
    lua_pop(lua, 1);
    return text;
  }
  try {
    if (type == LUA_TTABLE) {
      const Json table = to_json(lua, index, "error");
      for (const char* key : {"message", "msg"}) {
        if (table.contains(key) && table.at(key).is_string()) return table.at(key);
      }
      return lua_text(table);
    }
  } catch (const Error&) {  // the table has values that Json cannot have
  }
  return fmt::format("a {}", lua_typename(lua, type));
}

}  // namespace

Error take_error(lua_State* lua) {
  if (const auto* error = static_cast<const Error*>(luaL_testudata(lua, -1, error_type))) {
    Error copy = *error;
    lua_pop(lua, 1);
    return copy;
  }
  Error error(Stage::script, "script.error", "", raised_text(lua, -1));
  lua_pop(lua, 1);
  return error;
}

int add_trace(lua_State* lua) {
  if (luaL_testudata(lua, 1, error_type) != nullptr) return 1;
  Problem problem{Stage::script, "script.error", "", raised_text(lua, 1)};
  std::vector<std::string> places;
  lua_Debug frame;
  // lua_getstack() counts from the top each time: all levels of an endless recursion would take
  // minutes.
  for (int level = 0;
       level < most_levels && lua_getstack(lua, level, &frame) != 0 && places.size() < most_places;
       ++level) {
    std::string place = place_of_level(lua, frame);
    if (place.empty()) continue;
    // Lua puts a place in front, with long file names cut; the whole one can be clicked on.
    const std::string cut = fmt::format("{}:{}: ", frame.short_src, frame.currentline);
    if (problem.place.empty() && problem.message.starts_with(cut)) {
      problem.message.erase(0, cut.size());
      problem.place = place;
    }
    const bool known = !places.empty() && places.back() == place;  // the same line, in a recursion
    if (!known && problem.place != place) places.push_back(std::move(place));
  }
  if (!places.empty()) problem.hint = "called from " + join(places);
  const Script::State& state = Script::State::of(lua);
  if (state.options.sandboxed > 0) {
    if (std::string hint = hint_in_sandbox(problem.message); !hint.empty())
      problem.hint = std::move(hint);
  }
  const std::string missed = fmt::format("a nil value (field '{}')", state.missed);
  if (state.options.train_as != "train" && !state.missed.empty() &&
      problem.message.find(missed) != std::string::npos) {
    problem.hint = fmt::format(
        "under this command mw.train returns what mw.{} does: not all fields of a training run are "
        "there",
        state.options.train_as);
  }
  push_error(lua, Error(std::move(problem)));
  return 1;
}

void protected_call(lua_State* lua, int arguments, int results) {
  const int handler = lua_gettop(lua) - arguments;
  lua_pushcfunction(lua, add_trace);
  lua_insert(lua, handler);
  const int status = lua_pcall(lua, arguments, results, handler);
  lua_remove(lua, handler);
  if (status == LUA_ERRMEM && Script::State::of(lua).options.sandboxed > 0) {
    lua_pop(lua, 1);
    throw out_of_lua_memory(Script::State::of(lua).memory);
  }
  if (status != LUA_OK) throw take_error(lua);
}

}  // namespace mw
