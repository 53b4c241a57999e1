// Makes sure that a script's code comes to an end: it looks for the user's wish to stop, and
// limits the time that functions called in a run may take.
#pragma once

#include <chrono>
#include <lua.hpp>
#include <optional>

#include "lua/stuck.h"
#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// Looks at the clock and at the wish to stop while Lua runs,
// in the script itself and in functions that a verb calls.
class ScriptWatch {
 public:
  // Watches all code that runs in this state and in its coroutines.
  void begin(lua_State* lua);

  // Around a verb; earlier verbs' errors are forgotten. A function may take as long as the longest
  // `timeout` of the experiments.
  void verb(const std::vector<Json>& experiments);
  void verb_ended();
  // Around a function that a verb calls. enter() throws at once if a function of this verb was
  // given up before, as each rank calls the same one.
  void enter();
  // The function on top of the stack is the one that is called now.
  void calls(lua_State* lua);
  void leave(lua_State* lua);
  // Throws the error for which a function was given up, if there is one.
  void throw_if_given_up() const;
  // The watch for code that no hook can end.
  StuckWatch& stuck() { return stuck_; }

 private:
  static void look(lua_State* lua, lua_Debug*);
  void look_at(lua_State* lua);
  void every(lua_State* lua, int instructions);

  using Clock = std::chrono::steady_clock;
  lua_State* main_ = nullptr;
  double seconds_ = 0;  // seconds that a function may take
  bool inside_ = false;
  Clock::time_point deadline_;
  std::optional<Clock::time_point> stop_seen_;
  std::optional<Error> given_up_;
  StuckWatch stuck_;
  bool stopped_ = false;  // given up because of the wish to stop
};

}  // namespace mw
