// What the functions that Lua calls share: errors with their places, settings, calls back.
#pragma once

#include <functional>
#include <lua.hpp>
#include <vector>

#include "lua/guarded.h"
#include "lua/state.h"

namespace mw {

// Every problem that the script's author can mend gets its place in front.
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

// See CallFunction.
Json call_function(Script::State& state, std::int64_t number, const std::vector<Json>& arguments);

// While one is there, the script waits for a verb: its functions can be called, none of its verbs.
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
