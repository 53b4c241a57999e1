// Limits a Lua state's memory, and removes what leads out of it.
#include "lua/sandbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "lua/guarded.h"
#include "lua/state.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/options.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

void* allocate(void* given, void* block, std::size_t before, std::size_t after) {
  auto& memory = *static_cast<LuaMemory*>(given);
  if (block == nullptr) before = 0;  // for a new block Lua passes its type here
  if (after == 0) {
    std::free(block);
    memory.held -= before;
    return nullptr;
  }
  if (after > before && memory.held - before + after > memory.most) return nullptr;
  void* const fresh = std::realloc(block, after);
  if (fresh != nullptr) memory.held += after - before;
  return fresh;
}

// Lua calls this for an error outside of any pcall. If it returned, Lua would end the process.
int no_memory_left(lua_State* lua) {
  void* memory = nullptr;
  lua_getallocf(lua, &memory);
  throw out_of_lua_memory(*static_cast<LuaMemory*>(memory));
}

// loadfile(file, mode, env), only for files that may be read
int bounded_loadfile(lua_State* lua) {
  check_may_read(luaL_checkstring(lua, 1));
  const int arguments = lua_gettop(lua);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, arguments, LUA_MULTRET);
  return lua_gettop(lua);
}

// collectgarbage("collect" | "count" | "step"). Other modes could stop the collector, and with it
// keep all memory that was ever taken.
int collect_garbage(lua_State* lua) {
  static const char* const modes[] = {"collect", "count", "step", nullptr};
  luaL_checkoption(lua, 1, "collect", modes);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  return lua_gettop(lua);
}

// Removes all fields but `names`. It changes the table itself, so that it does not matter who else
// holds it.
void keep_alone(lua_State* lua, int table, std::initializer_list<std::string_view> names) {
  table = lua_absindex(lua, table);
  std::vector<std::string> others;
  for (lua_pushnil(lua); lua_next(lua, table) != 0; lua_pop(lua, 1)) {
    const std::string name = lua_type(lua, -2) == LUA_TSTRING ? lua_tostring(lua, -2) : "";
    if (std::find(names.begin(), names.end(), name) == names.end()) others.push_back(name);
  }
  for (const std::string& name : others) {
    lua_pushnil(lua);
    lua_setfield(lua, table, name.c_str());
  }
}

void take_away(lua_State* lua, std::initializer_list<const char*> globals) {
  lua_getfield(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  for (const char* name : globals) {
    lua_pushnil(lua);
    lua_setglobal(lua, name);
    lua_pushnil(lua);
    lua_setfield(lua, -2, name);
  }
  lua_pop(lua, 1);
}

void require_module(lua_State* lua, const char* name) {
  lua_getglobal(lua, "require");
  lua_pushstring(lua, name);
  protected_call(lua, 1, 0);
}

// Moves the module to the registry, as a script could use it like `load`.
void hide_module(lua_State* lua, const char* name) {
  lua_getfield(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_getfield(lua, -1, name);
  lua_setfield(lua, LUA_REGISTRYINDEX, name);
  lua_pushnil(lua);
  lua_setfield(lua, -2, name);
  lua_pop(lua, 1);
}

// Keeps the searchers of built-in modules and of Lua files, which pass over files that a script may
// not read.
void bound_package(lua_State* lua) {
  lua_getglobal(lua, "package");
  lua_getfield(lua, -1, "searchers");
  for (int place = 4; place > 2; --place) {
    lua_pushnil(lua);
    lua_rawseti(lua, -2, place);
  }
  lua_pop(lua, 1);
  keep_alone(lua, -1, {"path", "loaded", "preload", "searchers", "config", "meshwright_path"});
  lua_pop(lua, 1);
}

}  // namespace

lua_State* new_bounded_state(LuaMemory& memory) {
  lua_State* const lua = lua_newstate(allocate, &memory);
  if (lua != nullptr) lua_atpanic(lua, no_memory_left);
  return lua;
}

Error out_of_lua_memory(const LuaMemory& memory) {
  return Error(Stage::script, "sandbox.memory", "",
               fmt::format("the script's tables and texts take more than {}, a quarter of what its "
                           "sandbox allows",
                           format_bytes(static_cast<double>(memory.most))),
               "allow more: --sandbox-memory BYTES; or let the script keep less");
}

void keep_to_sandbox(lua_State* lua) {
  lua_getglobal(lua, "loadfile");
  lua_pushcclosure(lua, guarded<bounded_loadfile>, 1);
  lua_setglobal(lua, "loadfile");
  // The front end, loaded now, keeps the functions that it needs of those removed below.
  for (const char* module : {"meshwright", "meshwright.settings"}) require_module(lua, module);
  hide_module(lua, "meshwright.settings");
  bound_package(lua);
  lua_getglobal(lua, "debug");
  keep_alone(lua, -1, {"traceback"});
  lua_getglobal(lua, "os");
  keep_alone(lua, -1, {"clock", "time", "date", "difftime"});
  lua_getglobal(lua, "string");
  lua_pushnil(lua);
  lua_setfield(lua, -2, "dump");
  lua_pop(lua, 3);
  lua_getglobal(lua, "collectgarbage");
  lua_pushcclosure(lua, collect_garbage, 1);
  lua_setglobal(lua, "collectgarbage");
  take_away(lua, {"io", "load", "loadfile", "dofile"});
}

std::string hint_in_sandbox(const std::string& message) {
  for (const char* name :
       {"global 'io'", "global 'load'", "global 'dofile'", "field 'execute'", "field 'remove'",
        "field 'rename'", "field 'tmpname'", "field 'exit'", "field 'getenv'", "field 'loadlib'"}) {
    if (message.find(fmt::format("a nil value ({})", name)) != std::string::npos) {
      return fmt::format("--sandbox leaves the {} out; a script that you trust runs without it",
                         name);
    }
  }
  return "";
}

}  // namespace mw
