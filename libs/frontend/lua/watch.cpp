// Ends scripts that run on after the user wished to stop, or whose functions take longer than
// their timeout: a hook looks every million instructions. What no hook reaches is lua/stuck.h's.
#include "lua/watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "lua/state.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

// Lua instructions between two looks: about 10 ms.
constexpr int look_after = 1'000'000;
// How long a function may go on after the wish to stop: one that is about to return lets its step
// end well.
constexpr std::chrono::seconds grace{2};
constexpr double usual_timeout = 300, longest_timeout = 1e8;

double timeout_of(const Json& experiment) {
  if (!experiment.is_object() || !experiment.contains("timeout")) return usual_timeout;
  const Json& given = experiment["timeout"];
  const double seconds = given.is_number() ? given.get<double>() : usual_timeout;
  return seconds > 0 && seconds < longest_timeout ? seconds : longest_timeout;
}

}  // namespace

void ScriptWatch::begin(lua_State* lua) {
  main_ = lua;
  every(lua, look_after);
}

void ScriptWatch::verb(const std::vector<Json>& experiments) {
  verb_ended();
  seconds_ = 0;
  for (const Json& experiment : experiments) seconds_ = std::max(seconds_, timeout_of(experiment));
  stuck_.verb_begins();
}

void ScriptWatch::verb_ended() {
  stuck_.verb_ends();
  given_up_.reset();
  stop_seen_.reset();
  stopped_ = false;
}

void ScriptWatch::enter() {
  throw_if_given_up();
  if (seconds_ == 0) seconds_ = usual_timeout;
  deadline_ = Clock::now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds_));
  inside_ = true;
  stop_seen_.reset();
}

void ScriptWatch::calls(lua_State* lua) {
  lua_Debug info;
  lua_pushvalue(lua, -1);
  lua_getinfo(lua, ">S", &info);
  stuck_.function_begins(
      seconds_, info.linedefined < 0 ? "" : fmt::format("{}:{}", info.short_src, info.linedefined));
}

void ScriptWatch::leave(lua_State* lua) {
  stuck_.function_ends();
  inside_ = false;
  if (given_up_) every(lua, look_after);
}

void ScriptWatch::throw_if_given_up() const {
  if (!given_up_) return;
  if (stopped_) throw Stopped(given_up_->problems().front().text());
  throw Error(given_up_->problems());
}

void ScriptWatch::look(lua_State* lua, lua_Debug*) {
  Script::State::of(lua).watch.look_at(lua);
}

void ScriptWatch::look_at(lua_State* lua) {
  if (!given_up_) {
    const std::string place = user_place(lua);
    if (stop_requested()) {
      if (!stop_seen_) stop_seen_ = Clock::now();
      if (inside_ && Clock::now() < *stop_seen_ + grace) return;
      stopped_ = true;
      given_up_ = Error(Problem{Stage::run, "run.stopped", "",
                                inside_ ? "interrupted in this function" : "interrupted", "",
                                inside_ ? place : ""});
    } else if (inside_ && Clock::now() > deadline_) {
      given_up_ = Error(
          Problem{Stage::script, "function.timeout", "",
                  fmt::format("this function has not returned after {} s", format_number(seconds_)),
                  "mend it, or give the experiment a longer timeout", place});
    } else {
      return;
    }
  }
  // A pcall of the script catches this error too: from here on every instruction outside of a pcall
  // raises it again.
  every(lua, 1);
  push_error(lua, *given_up_);
  lua_error(lua);
}

void ScriptWatch::every(lua_State* lua, int instructions) {
  lua_sethook(main_, look, LUA_MASKCOUNT, instructions);
  if (lua != main_) lua_sethook(lua, look, LUA_MASKCOUNT, instructions);
}

}  // namespace mw
