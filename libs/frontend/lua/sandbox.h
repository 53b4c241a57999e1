// A Lua state for code that nobody vouches for: what it may call, read and allocate.
#pragma once

#include <cstddef>
#include <lua.hpp>
#include <string>

#include "meshwright/error.h"

namespace mw {

struct LuaMemory {
  std::size_t most = 0;  // bytes
  std::size_t held = 0;
};
// A state that allocates no more than that: then Lua's own error says so, which ends the code that
// asked for more. Null if not even the state fits. `memory` must outlive it.
lua_State* new_bounded_state(LuaMemory& memory);
// The error where such a state has no memory left (script, "sandbox.memory").
Error out_of_lua_memory(const LuaMemory& memory);

// Leaves in the state, whose libraries are open and which can require the front end, what computes:
// no io, no debug but traceback, of os the clocks; nothing that loads code but `require`, which
// finds the front end's modules and Lua files within the file bounds (engine/bounds.h).
void keep_to_sandbox(lua_State* lua);

// What to say to a script in a sandbox that failed with Lua's own message: which of Lua's functions
// the sandbox leaves out, if the message is about one of them; else empty.
std::string hint_in_sandbox(const std::string& message);

}  // namespace mw
