// The functions behind the Lua module "meshwright": each reads a script's arguments and calls
// the program. Each throws Error; guarded() hands it to Lua.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

#include "common/files.h"
#include "draw/page.h"
#include "lua/calls.h"
#include "lua/cluster_files.h"
#include "lua/guarded.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/block_op.h"
#include "meshwright/cluster.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "predict/goodput.h"
#include "script/instruction_filter.h"
#include "script/script_pass.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

namespace fs = std::filesystem;
using State = Script::State;

std::string text_argument(lua_State* lua, int index, const char* what) {
  if (lua_type(lua, index) == LUA_TSTRING) return lua_tostring(lua, index);
  throw Error(Stage::script, "script.argument", "",
              fmt::format("{}; got {}", what, luaL_typename(lua, index)));
}

// --- Verbs ---

// The table in which key paths begin: the experiment, or { a, b } of two.
Json root_of(const std::vector<Json>& experiments) {
  if (experiments.size() == 1) return experiments.front();
  Json both = {{"a", experiments[0]}, {"b", experiments[1]}};
  if (experiments[0].contains(place_key)) both[place_key] = experiments[0][place_key];
  return both;
}

// The last line of the script on which something in the verb's table was made, mw.llama { … } or a
// plan's entry. It stands for the line of a tail call, return mw.train { … }, which Lua forgets.
// Where the script made nothing of it, lines of the first place's file are compared; empty if there
// are no places.
std::string place_inside(const Json& table, const std::string& script) {
  struct Place {
    std::string text, file;
    int line = 0;
  };
  std::vector<Place> places;
  const auto look = [&](const Json& item) {
    if (!item.is_object() || !item.contains(place_key) || !item[place_key].is_string()) return;
    const auto text = item[place_key].get<std::string>();
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos) return;
    places.push_back({text, text.substr(0, colon), std::atoi(text.c_str() + colon + 1)});
  };
  for (const auto& [key, value] : table.items()) {
    look(value);
    if (!value.is_array()) continue;
    for (const Json& item : value) look(item);
  }
  if (places.empty()) return "";
  const bool of_script = std::any_of(places.begin(), places.end(),
                                     [&](const Place& place) { return place.file == script; });
  const std::string file = of_script ? script : places.front().file;
  const Place* last = nullptr;
  for (const Place& place : places) {
    if (place.file == file && (last == nullptr || place.line > last->line)) last = &place;
  }
  return last->text;
}

// Reads the experiments that a verb is given, and applies the command line's settings. `fail`
// throws.
std::vector<Json> read_experiments(
    lua_State* lua, State& state, int count, const std::string& here,
    std::vector<AppliedSetting>& applied,
    const std::function<void(const std::string& why, std::string hint)>& fail) {
  read_settings(lua, state);
  std::vector<Json> experiments;
  for (int i = 2; i <= count + 1; ++i) {
    if (lua_type(lua, i) != LUA_TTABLE) {
      fail(fmt::format("takes an experiment table; got {}", luaL_typename(lua, i)), "");
    }
    Json experiment;
    try {
      experiment = to_json(lua, i, "");
    } catch (const Error& error) {
      throw with_places(error, [&](const Problem&) { return here; });
    }
    if (!experiment.is_object()) fail("takes a table with names; got a list", "");
    const std::string place = here.empty() ? place_inside(experiment, state.file) : here;
    if (!experiment.contains(place_key) && !place.empty()) experiment[place_key] = place;
    const Json as_written = state.settings.empty() ? Json() : experiment;
    for (const Setting& setting : state.settings) {
      applied.push_back(apply_setting(setting, experiment));
      if (count > 1) applied.back().made = key_in(i == 2 ? "a" : "b", applied.back().made);
      if (!state.settings_said && state.options.say && !setting.given.starts_with("--"))
        state.options.say("--set " + applied.back().text);
    }
    if (const auto keys = changed_keys(state.settings, as_written, experiment); !keys.empty())
      experiment[changed_key] = keys;
    experiments.push_back(std::move(experiment));
  }
  state.settings_said = true;
  return experiments;
}

// call(verb, experiment…) -> the verb's result
int core_call(lua_State* lua) {
  State& state = State::of(lua);
  std::string verb = lua_tostring(lua, 1);
  const std::string name = "mw." + verb;
  std::string here = user_place(lua);
  state.host.tries(verb);
  const auto fail = [&](const std::string& why, std::string hint) {
    throw Error(Problem{Stage::script, "script.call", "", name + " " + why, std::move(hint), here});
  };
  if (state.waiting != nullptr) {
    fail("cannot run inside a function that another verb calls", "call it after that one returns");
  }
  if (stop_requested()) throw Error(Stage::run, "run.stopped", "", "interrupted");
  const auto verbs = state.host.verbs();
  const auto known =
      std::find_if(verbs.begin(), verbs.end(), [&](const Verb& v) { return v.name == verb; });
  const int count = lua_gettop(lua) - 1;
  if (known == verbs.end()) fail("is not there", "");
  if (count != known->experiments) {
    fail(fmt::format("takes {}; got {}", plural(known->experiments, "experiment table"), count),
         known->experiments == 1
             ? "for example mw." + verb + " { model = …, data = …, plan = { … } }"
             : "for example mw." + verb + "(a, b), where a = { model = …, plan = { … } }");
  }
  if (verb == "train") verb = state.options.train_as;

  std::vector<AppliedSetting> applied;
  const std::vector<Json> experiments = read_experiments(lua, state, count, here, applied, fail);

  Json result;
  const InVerb in_verb(lua, state, experiments);
  try {
    result = state.host.call(verb, experiments,
                             [&state](std::int64_t number, const std::vector<Json>& arguments) {
                               return call_function(state, number, arguments);
                             });
  } catch (const Error& error) {
    throw with_places(error, [&](const Problem& problem) {
      for (const AppliedSetting& setting : applied) {
        if (lies_in(problem.key, setting.made)) return setting.place;
      }
      return place_of(root_of(experiments), problem.key);
    });
  }
  push_result(lua, result);
  return 1;
}

// --- Plugins, clusters, ops and helpers ---

// verbs() -> { name, … }
int core_verbs(lua_State* lua) {
  Json names = Json::array();
  for (const Verb& verb : State::of(lua).host.verbs()) names.push_back(verb.name);
  push_json(lua, names);
  return 1;
}

// { tag =, name =, positional = }; the tag is the key under which the constructor's table has the
// name.
Json constructor_json(const Registration& one) {
  Json entry = {{"tag", one.kind == Kind::strategy ? "plugin" : "kind"}, {"name", one.name}};
  if (!one.options().positional().empty()) entry["positional"] = one.options().positional();
  return entry;
}

// constructors() -> { { path = "microbatch.fit", tag =, name =, positional = }, … }
int core_constructors(lua_State* lua) {
  Json all = Json::array();
  for (const Constructor& constructor : State::of(lua).host.constructors()) {
    all.push_back(constructor_json(*constructor.registration));
    all.back()["path"] = constructor.name;
  }
  push_json(lua, all);
  return 1;
}

int push_plugin(lua_State* lua, const PluginDescriptor& plugin) {
  Json all = Json::array();
  for (std::size_t i = 0; i < plugin.count; ++i)
    all.push_back(constructor_json(plugin.registrations[i]));
  lua_pushstring(lua, plugin.name);
  push_json(lua, all);
  return 2;
}

// plugin(name) -> name, what it registers: { { tag =, name =, positional = }, … }
int core_plugin(lua_State* lua) {
  return push_plugin(lua, State::of(lua).host.plugins().plugin(
                              text_argument(lua, 1, "mw.plugins takes names of plugins")));
}

// load_plugin(path) -> as plugin(name). A relative path counts from the working directory, then
// from the script's folder.
int core_load_plugin(lua_State* lua) {
  State& state = State::of(lua);
  const fs::path given = text_argument(lua, 1, "mw.plugin takes the path of a plugin file");
  const fs::path beside = state.folder / given;
  std::error_code error;  // ignored: a file that cannot be looked at is not there
  const bool use_beside =
      may_read(beside) && !fs::exists(given, error) && fs::exists(beside, error);
  return push_plugin(lua, state.host.plugins().load(use_beside ? beside : given));
}

// strategy(table) -> name, the option that a bare value stands for. Throws all problems of the
// table.
int core_strategy(lua_State* lua) {
  if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TTABLE) {
    throw Error(Stage::script, "script.argument", "",
                fmt::format("mw.strategy takes one table; got {}", luaL_typename(lua, 1)),
                "for example mw.strategy { name = \"mine\", axis = { role = \"model\" }, rules = { "
                "\"ffn\" } }");
  }
  Problems problems;
  const StrategyTable table(to_json(lua, 1, "mw.strategy"), "", problems);
  PluginRegistry& plugins = State::of(lua).host.plugins();
  const auto names = plugins.names();
  const auto known = plugins.list(Kind::strategy);
  const bool is_plugin = std::find(names.begin(), names.end(), table.name()) != names.end();
  if (is_plugin || std::any_of(known.begin(), known.end(), [&](const Registration* one) {
        return one->name == table.name();
      })) {
    problems.add(Stage::options, "plugin.twice", table.name() + ".name",
                 fmt::format("{0}.name: there is a {1} named {0}", table.name(),
                             is_plugin ? "plugin" : "plugin's strategy"),
                 "give the strategy another name; its axis may have that one");
  }
  problems.throw_if_any();
  lua_pushstring(lua, table.name().c_str());
  lua_pushstring(lua, table.options().positional().c_str());
  return 2;
}

// pass(verb, the edit's number, …) -> the result of a verb of a pass's code
int core_pass(lua_State* lua) {
  Json arguments = Json::array();
  for (int n = 1; n <= lua_gettop(lua); ++n) arguments.push_back(to_json(lua, n, "pass"));
  push_json(lua, call_pass(arguments, user_place(lua)));
  return 1;
}

// Lua userdata with the facts of a lane's instructions, which conditions ask.
constexpr const char* lane_type = "meshwright.lane_facts";
struct LaneFacts {
  std::vector<Json> facts;        // facts of each instruction
  std::vector<std::string> axes;  // names of the axes of the plan's mesh
};
const LaneFacts& lane_argument(lua_State* lua) {
  return *static_cast<const LaneFacts*>(luaL_checkudata(lua, 1, lane_type));
}

int drop_lane(lua_State* lua) {
  static_cast<LaneFacts*>(luaL_checkudata(lua, 1, lane_type))->~LaneFacts();
  return 0;
}

// lane_facts({ facts of an instruction, … }, { name of an axis, … }) -> facts for lane_find,
// lane_nothing
int core_lane_facts(lua_State* lua) {
  Json list = to_json(lua, 1, "lane");  // an empty lane comes as an empty object
  LaneFacts facts;
  facts.facts.assign(std::move_iterator(list.begin()), std::move_iterator(list.end()));
  for (const Json& axis : to_json(lua, 2, "lane")) facts.axes.push_back(axis.get<std::string>());
  new (lua_newuserdata(lua, sizeof(LaneFacts))) LaneFacts(std::move(facts));
  if (luaL_newmetatable(lua, lane_type) != 0) {
    lua_pushcfunction(lua, drop_lane);
    lua_setfield(lua, -2, "__gc");
  }
  lua_setmetatable(lua, -2);
  return 1;
}

// lane_find(facts, what, condition, from, to, last) -> the place of the first instruction between
// `from` and `to` that the condition takes, or of the last one where `last` is true. Where there is
// none: nil, and the known kind of ops nearest to a misspelt one, if any. `what` names the caller
// in messages.
int core_lane_find(lua_State* lua) {
  const auto& [facts, axes] = lane_argument(lua);
  const std::string what = luaL_checkstring(lua, 2);
  const auto filter = InstructionFilter::of_call(to_json(lua, 3, what), what);
  if (const auto unknown = filter.unknown_axis(axes))
    throw Error(Stage::script, "script.argument", "", what + ": " + unknown->message,
                unknown->hint);
  const bool last = lua_toboolean(lua, 6) != 0;
  const auto from = std::max<lua_Integer>(1, luaL_checkinteger(lua, 4));
  const auto to = std::min<lua_Integer>(std::ssize(facts), luaL_checkinteger(lua, 5));
  for (lua_Integer n = from; n <= to; ++n) {
    const lua_Integer place = last ? to - (n - from) : n;
    if (!filter.takes(facts[static_cast<std::size_t>(place - 1)])) continue;
    lua_pushinteger(lua, place);
    return 1;
  }
  std::set<std::string> kinds{"combine", "dispatch"};  // op kinds of experts
  for (const Registration* op : State::of(lua).host.plugins().list(Kind::op))
    kinds.insert(op->name);
  for (const Json& one : facts) kinds.insert(one.value("kind", ""));
  kinds.erase("");
  const std::string near = filter.misspelt_kind({kinds.begin(), kinds.end()});
  if (filter.optional() || near.empty()) return 0;
  lua_pushnil(lua);
  lua_pushstring(lua, near.c_str());
  return 2;
}

// lane_nothing(facts, condition) -> the condition's text, and why it takes no instruction
int core_lane_nothing(lua_State* lua) {
  const std::vector<Json>& facts = lane_argument(lua).facts;
  const auto filter = InstructionFilter::of_call(to_json(lua, 2, "take"), "take");
  const std::string why = filter.why_nothing([&](const InstructionFilter::Visit& visit) {
    for (const Json& one : facts) visit(one);
  });
  lua_pushstring(lua, filter.text().c_str());
  lua_pushstring(lua, why.c_str());
  return 2;
}

// plugin_names() -> { name, … }; loads no plugin
int core_plugin_names(lua_State* lua) {
  push_json(lua, State::of(lua).host.plugins().names());
  return 1;
}

// clusters(all) -> { name = { file, … } } of the plugin path's files, { name, … } of clusters that
// plugins bring: all plugins, or those that the script has named
int core_clusters(lua_State* lua) {
  PluginRegistry& plugins = State::of(lua).host.plugins();
  Json files = Json::object(), brought = Json::array();
  for (const fs::path& folder : plugins.folders()) {
    for (const ClusterFile& one : cluster_files(folder, cluster_ending))
      files[one.name].push_back(one.file.string());
  }
  const bool all = lua_toboolean(lua, 1) != 0;
  for (const Registration* one : all ? plugins.all(Kind::cluster) : plugins.list(Kind::cluster))
    brought.push_back(one->name);
  push_json(lua, files);
  push_json(lua, brought);
  return 2;
}

// cluster(name, changes) -> the table that a plugin describes, and changes that are not its options
int core_cluster(lua_State* lua) {
  const std::string name = luaL_checkstring(lua, 1);
  PluginRegistry& plugins = State::of(lua).host.plugins();
  const Registration& found = plugins.find(Kind::cluster, name);
  Json own = Json::object(), rest = Json::object();
  const Json changes = to_json(lua, 2, name);
  for (const auto& [key, value] : changes.items()) {
    const auto& options = found.options().list();
    const bool option = std::any_of(options.begin(), options.end(),
                                    [&, &key = key](const Option& o) { return o.name == key; });
    (option ? own : rest)[key] = value;
  }
  Problems problems;
  const Values values = found.options().read(own, "mw.cluster", problems);
  problems.throw_if_any();
  const auto describe = [&] { return make<ClusterSource>(found, values)->describe(); };
  push_json(lua, call_plugin({name, ""}, "described a cluster", describe, Stage::options));
  push_json(lua, rest);
  return 2;
}

// is_file(path) -> whether the path exists. Throws where the script may not read.
int core_is_file(lua_State* lua) {
  const fs::path path = luaL_checkstring(lua, 1);
  check_may_read(path);
  std::error_code error;
  lua_pushboolean(lua, fs::exists(path, error) ? 1 : 0);
  return 1;
}

// op(name, inputs, options) -> how many values the op makes. Refuses what the op does not take.
int core_op(lua_State* lua) {
  const std::string name = luaL_checkstring(lua, 1);
  State& state = State::of(lua);
  const auto call = [&state](std::int64_t number, const std::vector<Json>& arguments) {
    return call_function(state, number, arguments);
  };
  const auto reach =
      std::make_shared<ScriptReach>(ScriptReach{call, {".", state.folder}, &state.host.plugins()});
  lua_pushinteger(lua, check_call(name, luaL_checkinteger(lua, 2), to_json(lua, 3, name), reach));
  return 1;
}

// place() -> "script.lua:12" or nil
int core_place(lua_State* lua) {
  const std::string place = user_place(lua);
  if (place.empty()) return 0;
  lua_pushstring(lua, place.c_str());
  return 1;
}

// refuse(message, hint, place): an error of the script, at the user's line if no place is given
int core_refuse(lua_State* lua) {
  const char* hint = lua_tostring(lua, 2);
  const char* place = lua_tostring(lua, 3);
  throw Error(Problem{Stage::script, "script.argument", "", luaL_tolstring(lua, 1, nullptr),
                      hint == nullptr ? "" : hint, place == nullptr ? "" : place});
}

// bar_chart(file, chart): writes a page; makes missing folders
int core_bar_chart(lua_State* lua) {
  write_output({"mw.bar_chart", luaL_checkstring(lua, 1), OutputKind::page},
               bars_html(to_json(lua, 2, "chart")));
  State::of(lua).host.did("bar_chart");
  return 0;
}

// goodput(table) -> a table of shares and intervals
int core_goodput(lua_State* lua) {
  if (lua_type(lua, 1) != LUA_TTABLE) {
    throw Error(Stage::script, "script.argument", "",
                fmt::format("mw.goodput takes a table; got {}", luaL_typename(lua, 1)),
                "mw.goodput { plan = result, mtbf = …, checkpoint_seconds = …, restart_seconds = … "
                "}");
  }
  Problems problems;
  const GoodputRequest request = read_goodput(to_json(lua, 1, "goodput"), "goodput", problems);
  problems.throw_if_any();
  const Goodput found = goodput(request);
  push_json(lua, to_json(found, request));
  give_text(lua, text_of(found, request), /*soon=*/false);
  State::of(lua).host.did("goodput");
  return 1;
}

// near(word, { known, … }) -> "did you mean …?", or nil
int core_near(lua_State* lua) {
  std::vector<std::string> known;
  for (const Json& name : to_json(lua, 2, "")) known.push_back(name.get<std::string>());
  const std::string near = did_you_mean(luaL_checkstring(lua, 1), known);
  if (near.empty()) {
    lua_pushnil(lua);
  } else {
    lua_pushlstring(lua, near.data(), near.size());
  }
  return 1;
}

// unknown(key, { known, … }, message): throws that there is no mw.KEY, or `message`, with the
// nearest name
int core_unknown(lua_State* lua) {
  const bool told = lua_gettop(lua) > 2;  // asked before luaL_tolstring() pushes a text
  const std::string key = luaL_tolstring(lua, 1, nullptr);
  std::vector<std::string> known;
  for (const Json& name : to_json(lua, 2, "")) known.push_back(name.get<std::string>());
  throw Error(Stage::script, "script.unknown", "",
              told ? lua_tostring(lua, 3) : fmt::format("there is no mw.{}", key),
              nearest_or_all(key, known));
}

}  // namespace

int open_core(lua_State* lua) {
  static const luaL_Reg functions[] = {{"call", guarded<core_call>},
                                       {"verbs", guarded<core_verbs>},
                                       {"constructors", guarded<core_constructors>},
                                       {"plugin", guarded<placed<core_plugin>>},
                                       {"load_plugin", guarded<placed<core_load_plugin>>},
                                       {"strategy", guarded<placed<core_strategy>>},
                                       {"pass", guarded<placed<core_pass>>},
                                       {"lane_facts", guarded<core_lane_facts>},
                                       {"lane_find", guarded<placed<core_lane_find>>},
                                       {"lane_nothing", guarded<placed<core_lane_nothing>>},
                                       {"plugin_names", guarded<core_plugin_names>},
                                       {"cluster", guarded<placed<core_cluster>>},
                                       {"clusters", guarded<core_clusters>},
                                       {"is_file", guarded<placed<core_is_file>>},
                                       {"op", guarded<placed<core_op>>},
                                       {"load", guarded<placed<core_load>>},
                                       {"place", guarded<core_place>},
                                       {"refuse", guarded<placed<core_refuse>>},
                                       {"bar_chart", guarded<placed<core_bar_chart>>},
                                       {"goodput", guarded<placed<core_goodput>>},
                                       {"near", guarded<core_near>},
                                       {"sweep", guarded<core_sweep>},
                                       {"sweep_go", guarded<core_sweep_go>},
                                       {"sweep_report", guarded<core_sweep_report>},
                                       {"unknown", guarded<placed<core_unknown>>},
                                       {nullptr, nullptr}};
  luaL_newlib(lua, functions);
  return 1;
}

}  // namespace mw
