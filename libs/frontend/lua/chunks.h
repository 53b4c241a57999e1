// Where Lua code comes from: a script's file or standard input, and what a script loads itself.
// Text only: Lua does not check compiled code, and what is wrong with it takes the process down.
#pragma once

#include <filesystem>
#include <lua.hpp>

#include "lua/script.h"

namespace mw {

// Leaves a script's function on the stack. Throws Error (script).
void load_script(lua_State* lua, const ScriptText& script);

// The error of a chunk of this name that does not load, whose message lies on the stack; pops it.
Error load_error(lua_State* lua, const std::string& name);

// load, loadfile, dofile and require refuse compiled code from here on.
void load_text_only(lua_State* lua);

}  // namespace mw
