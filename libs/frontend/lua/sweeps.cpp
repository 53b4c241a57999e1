// mw.sweep and the methods of a sweep, for Lua: they hand tables to the Host, which does the rest.
#include <fmt/format.h>

#include "lua/calls.h"
#include "lua/host.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

[[noreturn]] void not_here(const char* what) {
  throw Error(Stage::script, "script.call", "",
              fmt::format("this command does not support {}", what),
              "give the script to meshwright sweep or meshwright run");
}

Error with_sweep_places(const Error& error, const Script::State::Sweep& sweep) {
  return with_places(error, [&](const Problem& problem) {
    for (const AppliedSetting& setting : sweep.applied) {
      if (lies_in(problem.key, key_in("base", setting.made))) return setting.place;
    }
    return place_of(sweep.table, problem.key);
  });
}

Script::State::Sweep& sweep_at(lua_State* lua, int index) {
  auto& sweeps = Script::State::of(lua).sweeps;
  return sweeps.at(static_cast<std::size_t>(luaL_checkinteger(lua, index)) - 1);
}

// `called_at`: the script's line with these options.
Json go(lua_State* lua, Script::State& state, Script::State::Sweep& sweep, const Json& options,
        const std::string& called_at) {
  if (stop_requested()) throw Error(Stage::run, "run.stopped", "", "interrupted");
  sweep.gone = true;
  state.show_results();
  const Json table = sweep.table;
  const InVerb in_verb(lua, state, {table.value("base", Json())});
  try {
    return state.host.run_sweep(table, options, state.options.train_as,
                                [&state](std::int64_t number, const std::vector<Json>& arguments) {
                                  return call_function(state, number, arguments);
                                });
  } catch (const Error& error) {
    const Error at_call = with_places(error, [&](const Problem& problem) {
      return options.contains(problem.key) ? called_at : std::string();
    });
    throw with_sweep_places(at_call, sweep);
  }
}

}  // namespace

Json Host::row_of(const Json&) const {
  return nullptr;
}
std::string Host::list_of(const std::vector<Json>&) const {
  return "";
}
void Host::show(const std::string&) {}
void Host::tries(const std::string&) {}
void Host::did(const std::string&) {}
void Host::check_sweep(const Json&, const std::vector<AppliedSetting>&) {
  not_here("mw.sweep");
}
Json Host::run_sweep(const Json&, const Json&, const std::string&, const CallFunction&) {
  not_here("sweep:go");
}
std::string Host::report_sweep(const Json&, const std::string&, const Json&) {
  not_here("sweep:report");
}

int core_sweep(lua_State* lua) {
  Script::State& state = Script::State::of(lua);
  state.host.tries("sweep");
  const std::string here = user_place(lua);
  const auto fail = [&](const std::string& why) {
    throw Error(
        Problem{Stage::script, "script.call", "", "mw.sweep " + why,
                "for example mw.sweep { name = \"mixes\", base = { … }, over = { plan = { … } "
                "} }",
                here});
  };
  if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TTABLE)
    fail(fmt::format("takes one table; got {}", luaL_typename(lua, 1)));
  if (state.waiting != nullptr) fail("cannot be called inside a function that a verb calls");
  read_settings(lua, state);
  Script::State::Sweep sweep;
  try {
    sweep.table = to_json(lua, 1, "");
  } catch (const Error& error) {
    throw with_places(error, [&](const Problem&) { return std::string(here); });
  }
  if (!sweep.table.is_object()) fail("takes a table with names; got a list");
  if (!sweep.table.contains(place_key) && !here.empty()) sweep.table[place_key] = here;
  for (const Setting& setting : state.settings) {
    if (!sweep.table.contains("base") || !sweep.table["base"].is_object()) break;
    sweep.applied.push_back(apply_setting(setting, sweep.table["base"]));
    if (!state.settings_said && state.options.say && !setting.given.starts_with("--"))
      state.options.say("--set " + sweep.applied.back().text);
  }
  state.settings_said = true;
  try {
    state.host.check_sweep(sweep.table, sweep.applied);
  } catch (const Error& error) {
    throw with_sweep_places(error, sweep);
  }
  state.sweeps.push_back(std::move(sweep));
  lua_pushinteger(lua, static_cast<lua_Integer>(state.sweeps.size()));
  return 1;
}

int core_sweep_go(lua_State* lua) {
  Script::State& state = Script::State::of(lua);
  if (state.waiting != nullptr) {
    throw Error(Problem{Stage::script, "script.call", "",
                        "sweep:go cannot run inside a function that a verb calls",
                        "call it after that one returns", user_place(lua)});
  }
  Json options = to_json(lua, 2, "");
  if (options.is_null() || options.empty()) options = Json::object();
  if (!options.is_object()) {
    throw Error(Problem{Stage::script, "script.call", "",
                        fmt::format("sweep:go takes a table with names; got {}", describe(options)),
                        "for example sweep:go { workers = 2 }", user_place(lua)});
  }
  const Json result = go(lua, state, sweep_at(lua, 1), options, user_place(lua));
  push_json(lua, result.at("cells"));
  give_text(lua, result.value("text", ""), result.value("shows", false));
  if (result.value("ends", false))
    throw Error(Stage::script, "script.ends", "", "sweep:go was to list its cells, and has");
  return 1;
}

int core_sweep_report(lua_State* lua) {
  Script::State& state = Script::State::of(lua);
  if (lua_type(lua, 2) != LUA_TSTRING) {
    throw Error(
        Problem{Stage::script, "script.argument", "",
                fmt::format("sweep:report takes a file's name; got {}", luaL_typename(lua, 2)),
                "for example sweep:report \"report.html\"", user_place(lua)});
  }
  state.show_results();
  const Json options = to_json(lua, 3, "");
  // A copy: a finalizer of the script may make another sweep, which moves them all.
  const Json table = sweep_at(lua, 1).table;
  const std::string file = state.host.report_sweep(table, lua_tostring(lua, 2), options);
  lua_pushlstring(lua, file.data(), file.size());
  return 1;
}

std::size_t Script::run_sweeps() {
  const std::size_t made = state_->sweeps.size();
  for (std::size_t i = 0; i < made; ++i) {
    if (state_->sweeps[i].gone) continue;
    const Json result = go(state_->lua, *state_, state_->sweeps[i], Json::object(), "");
    if (result.value("shows", false)) state_->host.show(result.value("text", ""));
  }
  return made;
}

}  // namespace mw
