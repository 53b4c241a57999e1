// The inside of a Script, shared by the runner and the functions that Lua calls.
#pragma once

#include <deque>
#include <lua.hpp>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lua/sandbox.h"
#include "lua/script.h"
#include "lua/settings.h"
#include "lua/watch.h"

namespace mw {

struct Script::State {
  State(Host& host_, ScriptOptions options_) : host(host_), options(std::move(options_)) {}

  Host& host;
  ScriptOptions options;
  LuaMemory memory;              // memory of a script in a sandbox
  std::filesystem::path folder;  // the script's folder
  std::filesystem::path copies;  // ScriptText::copies
  std::string file;              // the script's file, as places name it
  lua_State* lua = nullptr;

  std::vector<Setting> settings;
  bool settings_read = false, settings_said = false;

  // While a verb runs: the Lua thread that waits for it. Functions are called on it, one at a time.
  lua_State* waiting = nullptr;
  std::mutex calling;
  ScriptWatch watch;

  struct Result {
    std::string text;
    bool printed = false;
    bool soon = false;  // shown before what the script says next, not at its end
    Json row;           // Host::row_of
  };
  std::deque<Result> results;
  // Shows the results that are `soon` and not printed yet.
  void show_results();
  // The missing field of a result that the script asked for last.
  std::string missed;

  // The sweeps that mw.sweep made, by number from 1.
  struct Sweep {
    Json table;
    std::vector<AppliedSetting> applied;
    bool gone = false;
  };
  std::vector<Sweep> sweeps;

  static State& of(lua_State* lua) { return **static_cast<State**>(lua_getextraspace(lua)); }
};

// The code of the error that ends a script which has no more to do.
inline constexpr const char* script_ends = "script.ends";

// "script.lua:12": the innermost line that is the user's and not the library's; empty if none is.
std::string user_place(lua_State* lua);
// The library's file that a source (lua_Debug::source) is: "weave.lua"; "" for a user's file.
std::string library_file(lua_State* lua, std::string_view source);

// Pushes an Error as a Lua value that prints as its text and that take_error() gives back.
void push_error(lua_State* lua, const Error& error);
// The Error on top of the stack, made of whatever value a script threw; pops it.
Error take_error(lua_State* lua);
// Message handler for lua_pcall: adds to a script's own errors where the failing line was called
// from.
int add_trace(lua_State* lua);
// Calls what lies on the stack as lua_pcall does, and throws its error as Error.
void protected_call(lua_State* lua, int arguments, int results);

// load(path): mw.load.
int core_load(lua_State* lua);

// Pushes an argument of a script's function. Where an op, a parameter or a bucket, which have a
// name, lacks a field, reading it raises an Error with the nearest name; other tables give nil.
void push_argument(lua_State* lua, const Json& argument);
// Pushes the result of a verb; Script::unprinted() has its text until the script prints it.
void push_result(lua_State* lua, const Json& result);
// Gives the table on top of the stack this text, for print.
void give_text(lua_State* lua, std::string text, bool soon);

// luaopen_ of "meshwright.core", on which lua/meshwright/init.lua is built.
int open_core(lua_State* lua);

}  // namespace mw
