// Loads Lua code: a script's file or standard input, and what a script loads itself. Text only: Lua
// does not check compiled code, and faulty code takes the process down.
#pragma once

#include <filesystem>
#include <lua.hpp>

#include "lua/script.h"

namespace mw {

// Loads a script, and leaves its function on the stack. Throws Error (script).
void load_script(lua_State* lua, const ScriptText& script);

// The error of a chunk `name` that does not load; pops Lua's message from the stack.
Error load_error(lua_State* lua, const std::string& name);

// load, loadfile, dofile and require refuse compiled code from here on.
void load_text_only(lua_State* lua);

}  // namespace mw
