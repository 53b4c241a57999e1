// Lets functions that Lua calls throw.
#pragma once

#include <cxxabi.h>
#include <lua.hpp>
#include <optional>

#include "lua/state.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/error.h"

namespace mw {

using Function = int (*)(lua_State*);

// Raises the error in Lua outside of the catch block, as Lua unwinds by an exception of its own.
template <Function function>
int guarded(lua_State* lua) {
  std::optional<Error> caught;
  try {
    return function(lua);
  } catch (const Error& error) {
    caught = error;
  } catch (const std::exception& error) {
    caught = Error(problem_of(error));
  } catch (void*) {  // Lua's own exception is a pointer
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    caught = Error(Stage::run, "run.exception", "", thrown_text());
  }
  push_error(lua, *caught);
  return lua_error(lua);
}

}  // namespace mw
