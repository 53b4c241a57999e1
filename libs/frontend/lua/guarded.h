// Functions for Lua that may throw.
#pragma once

#include <lua.hpp>
#include <optional>

#include "lua/state.h"
#include "meshwright/error.h"

namespace mw {

using Function = int (*)(lua_State*);

// Raises outside of the handler: Lua unwinds by an exception of its own.
template <Function function>
int guarded(lua_State* lua) {
  std::optional<Error> caught;
  try {
    return function(lua);
  } catch (const Error& error) {
    caught = error;
  } catch (const std::exception& error) {
    caught = Error(problem_of(error));
  }
  push_error(lua, *caught);
  return lua_error(lua);
}

}  // namespace mw
