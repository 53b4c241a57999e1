// Annotations for the Lua language server, from the same declarations that check scripts.
#include "app/app_host.h"
#include "app/command.h"
#include "app/option_text.h"
#include "app/sweep/table.h"
#include "app/texts.h"
#include "meshwright/engine/registry.h"
#include "script/read_search.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

Json declaration_of(const Options& options) {
  return {{"options", options_json(options)}, {"positional", options.positional()}};
}

Json declaration_of(const Registration& one) {
  return {{"kind", name_of(one.kind)},
          {"name", one.name},
          {"doc", one.doc},
          {"takes", declaration_of(one.options())}};
}

// What the plugin registers. Its ops are also appended to `ops`.
Json declaration_of(const PluginDescriptor& plugin, Json& ops) {
  Json brings = Json::array();
  for (const Registration& one : registrations_of(plugin)) {
    brings.push_back(declaration_of(one));
    if (one.kind == Kind::op) ops.push_back(brings.back());
  }
  return {{"name", plugin.name}, {"brings", brings}};
}

Json fields_of_results(const AppHost& host) {
  std::vector<std::string> kinds = {"predicted", "timing", "loaded"};
  for (const Verb& verb : host.verbs()) kinds.push_back(verb.name);
  Json results = Json::object();
  for (const std::string& kind : kinds) {
    results[kind] = Json::array();
    for (const ResultField& field : result_fields(kind))
      results[kind].push_back(Json::array({field.name, field.type, field.doc}));
  }
  return results;
}

}  // namespace

std::string lua_types(PluginRegistry& plugins) {
  Output silent(false);
  const AppHost host(silent, plugins);
  Json given = {{"results", fields_of_results(host)},
                {"experiment", declaration_of(host.experiment())},
                {"search", declaration_of(search_options())},
                {"sweep", declaration_of(sweep_options())},
                {"go", declaration_of(go_options())},
                {"axis", declaration_of(strategy_axis_options())},
                {"rule", declaration_of(strategy_rule_options())},
                {"store", declaration_of(strategy_store_options())},
                {"strategy", declaration_of(strategy_options())}};
  Json verbs = Json::array(), ops = Json::array(), made = Json::array(), others = Json::array();
  for (const Verb& verb : host.verbs())
    verbs.push_back({{"name", verb.name}, {"doc", verb.doc}, {"experiments", verb.experiments}});
  for (const Constructor& constructor : host.constructors()) {
    made.push_back(declaration_of(*constructor.registration));
    made.back()["path"] = constructor.name;
  }
  declaration_of(built_in(), ops);
  for (const PluginFile& plugin : plugins.files())
    if (plugin.problem.empty()) others.push_back(declaration_of(*plugin.descriptor, ops));
  given.update({{"verbs", verbs}, {"ops", ops}, {"constructors", made}, {"plugins", others}});
  return from_library("lua_types", given);
}

namespace {

const CommandOf<Arguments> lua_types_command{
    {"lua-types", 190, "print the type annotations of the Lua module, for editors"},
    [](CLI::App& command, Arguments& a) { add_common(command, a, false); },
    [](const Arguments& a, Output& output) {
      PluginRegistry plugins = registry_of(a);
      output.text(lua_types(plugins));
      return 0;
    }};

}  // namespace
}  // namespace mw
