// Calls functions of the Lua library in a state that has nothing of a script.
#include "lua/library.h"

#include <iterator>
#include <memory>
#include <stdexcept>

#include "lua/guarded.h"
#include "lua/script.h"
#include "lua/value.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// Userdata that shows a Json table or list to Lua, and keeps the order of keys.
constexpr const char* view_type = "meshwright.view";

void push_view(lua_State* lua, const Json& value) {
  if (!value.is_structured()) {
    push_json(lua, value);
    return;
  }
  *static_cast<const Json**>(lua_newuserdatauv(lua, sizeof(const Json*), 0)) = &value;
  luaL_setmetatable(lua, view_type);
}

const Json& viewed(lua_State* lua, int index) {
  return **static_cast<const Json**>(luaL_checkudata(lua, index, view_type));
}

int view_field(lua_State* lua) {
  const Json& of = viewed(lua, 1);
  if (of.is_array() && lua_isinteger(lua, 2)) {
    const lua_Integer place = lua_tointeger(lua, 2);
    if (place < 1 || place > std::ssize(of)) return 0;
    push_view(lua, of[static_cast<std::size_t>(place - 1)]);
    return 1;
  }
  if (!of.is_object() || lua_type(lua, 2) != LUA_TSTRING) return 0;
  const auto found = of.find(lua_tostring(lua, 2));
  if (found == of.end()) return 0;
  push_view(lua, *found);
  return 1;
}

int view_size(lua_State* lua) {
  lua_pushinteger(lua, std::ssize(viewed(lua, 1)));
  return 1;
}

// Iterator of pairs(). Upvalue: how many entries it has returned.
int next_of_view(lua_State* lua) {
  const Json& of = viewed(lua, 1);
  const lua_Integer place = lua_tointeger(lua, lua_upvalueindex(1));
  if (place >= std::ssize(of)) return 0;
  lua_pushinteger(lua, place + 1);
  lua_replace(lua, lua_upvalueindex(1));
  if (of.is_array()) {
    lua_pushinteger(lua, place + 1);
    push_view(lua, of[static_cast<std::size_t>(place)]);
    return 2;
  }
  const auto& [key, item] = of.get_ref<const Json::object_t&>().begin()[place];
  lua_pushlstring(lua, key.data(), key.size());
  push_view(lua, item);
  return 2;
}

int view_pairs(lua_State* lua) {
  lua_pushinteger(lua, 0);
  lua_pushcclosure(lua, next_of_view, 1);
  lua_pushvalue(lua, 1);
  return 2;
}

int call_function(lua_State* lua) {
  const auto* function =
      static_cast<const LibraryFunction*>(lua_touserdata(lua, lua_upvalueindex(1)));
  Json arguments = Json::array();
  for (int n = 1; n <= lua_gettop(lua); ++n) {
    const bool is_view = luaL_testudata(lua, n, view_type) != nullptr;
    arguments.push_back(is_view ? viewed(lua, n) : to_json(lua, n, ""));
  }
  push_json(lua, (*function)(arguments));
  return 1;
}

// luaopen_ of "meshwright.format". Upvalue: its functions.
int open_format(lua_State* lua) {
  const auto& functions = *static_cast<const std::map<std::string, LibraryFunction>*>(
      lua_touserdata(lua, lua_upvalueindex(1)));
  lua_newtable(lua);
  for (const auto& [name, function] : functions) {
    lua_pushlightuserdata(lua, const_cast<LibraryFunction*>(&function));
    lua_pushcclosure(lua, guarded<call_function>, 1);
    lua_setfield(lua, -2, name.c_str());
  }
  return 1;
}

}  // namespace

Json call_library(const std::string& name, const Json& value,
                  const std::map<std::string, LibraryFunction>& functions) {
  const std::unique_ptr<lua_State, void (*)(lua_State*)> state(luaL_newstate(), lua_close);
  lua_State* lua = state.get();
  if (lua == nullptr) throw std::bad_alloc();
  luaL_openlibs(lua);
  static const luaL_Reg meanings[] = {
      {"__index", view_field}, {"__len", view_size}, {"__pairs", view_pairs}, {nullptr, nullptr}};
  luaL_newmetatable(lua, view_type);
  luaL_setfuncs(lua, meanings, 0);
  lua_getglobal(lua, "package");
  lua_pushstring(lua, (lua_library() / "?.lua").c_str());
  lua_setfield(lua, -2, "path");
  lua_getfield(lua, -1, "preload");
  lua_pushlightuserdata(lua, const_cast<std::map<std::string, LibraryFunction>*>(&functions));
  lua_pushcclosure(lua, open_format, 1);
  lua_setfield(lua, -2, "meshwright.format");
  lua_getglobal(lua, "require");
  lua_pushstring(lua, ("meshwright." + name).c_str());
  if (lua_pcall(lua, 1, 1, 0) != LUA_OK)
    throw Error(Stage::environment, "kit.templates", "", take_error(lua).problems().front().message,
                "build or install again");
  push_view(lua, value);
  if (lua_pcall(lua, 1, 1, 0) == LUA_OK) return to_json(lua, -1, name);
  throw std::runtime_error(take_error(lua).problems().front().message);
}

}  // namespace mw
