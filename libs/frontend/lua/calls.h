// Shared by the functions that Lua calls: places of errors, --set, and calls of script functions.
#pragma once

#include <functional>
#include <lua.hpp>
#include <vector>

#include "lua/guarded.h"
#include "lua/state.h"

namespace mw {

// Gives each problem that the script's author can mend its place, unless it has one.
Error with_places(const Error& error, const std::function<std::string(const Problem&)>& place);

template <Function function>
int placed(lua_State* lua) {
  try {
    return function(lua);
  } catch (const Error& error) {
    throw with_places(error, [&](const Problem&) { return user_place(lua); });
  }
}

// Reads the values of --set, once.
void read_settings(lua_State* lua, Script::State& state);

// Does what CallFunction (lua/host.h) says.
Json call_function(Script::State& state, std::int64_t number, const std::vector<Json>& arguments);

// While an object exists, the script waits for a verb: its functions may be called, but no verb.
class InVerb {
 public:
  InVerb(lua_State* lua, Script::State& state, const std::vector<Json>& experiments)
      : state_(state) {
    state_.waiting = lua;
    state_.watch.verb(experiments);
  }
  ~InVerb() {
    state_.waiting = nullptr;
    state_.watch.verb_ended();
  }
  InVerb(const InVerb&) = delete;
  InVerb& operator=(const InVerb&) = delete;

 private:
  Script::State& state_;
};

// mw.sweep(table) -> its number; sweep:go(number, options) -> its cells; sweep:report(number, file,
// options) -> the file.
int core_sweep(lua_State* lua);
int core_sweep_go(lua_State* lua);
int core_sweep_report(lua_State* lua);

}  // namespace mw
