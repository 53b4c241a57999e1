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
// A Lua state that allocates at most `memory.most`; code that asks for more ends by Lua's own
// error. Null if not even the state fits. `memory` must outlive the state.
lua_State* new_bounded_state(LuaMemory& memory);
// The error of a bounded state that has no memory left (script, "sandbox.memory").
Error out_of_lua_memory(const LuaMemory& memory);

// Leaves in a state only what computes: no io, no debug but traceback, of os the clocks; nothing
// that loads code but `require`, which finds the front end's modules and Lua files within the file
// bounds (engine/bounds.h). The state's libraries must be open, and it must be able to require the
// front end.
void keep_to_sandbox(lua_State* lua);

// A hint for a script in a sandbox that failed with Lua's own message: the function of Lua that the
// sandbox leaves out, if the message is about one; else empty.
std::string hint_in_sandbox(const std::string& message);

}  // namespace mw
