// Annotations for the Lua language server, from the same declarations that check scripts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "app/app_host.h"
#include "app/command.h"
#include "app/option_text.h"
#include "app/sweep/table.h"
#include "common/files.h"
#include "lua/script.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "script/read_search.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

std::string lua_type(const Option& option) {
  if (option.type == OptionType::choice) return join_quoted(option.choices, "|");
  static constexpr std::array names{"boolean", "integer", "number", "string",   "integer|string",
                                    "choice",  "table",   "any[]",  "function", "any"};
  return names.at(static_cast<std::size_t>(option.type));
}

std::string field(const Option& option, const std::string& type) {
  const bool required = !option.fallback && !option.optional;
  std::string doc = option.doc;
  if (option.fallback && !option.fallback->is_null())
    doc += fmt::format(" (default {})", default_text(option));
  if (const std::string range = range_text(option); !range.empty())
    doc += fmt::format(" ({})", range);
  return fmt::format("---@field {}{} {} {}\n", option.name, required ? "" : "?", type, doc);
}

// `types`: of options that hold more than their declaration says.
std::string fields(const Options& options, const std::map<std::string, std::string>& types = {}) {
  std::string text;
  for (const Option& option : options.list()) {
    const auto known = types.find(option.name);
    text += field(option, known != types.end() ? known->second : lua_type(option));
    // The value without a name is the first of the table.
    if (option.name == options.positional()) {
      text += fmt::format("---@field [1]? {} the same as {}\n", lua_type(option), option.name);
    }
  }
  return text;
}

// In an experiment, tables of a group are the constructors' results.
std::string experiment_type(const Option& option) {
  static const std::map<std::string, std::string> groups = {
      {"model", "meshwright.Model"},
      {"data", "meshwright.Data"},
      {"optimizer", "meshwright.Optimizer"},
      {"schedule", "meshwright.Schedule|fun(step: integer): number"},
      {"plan", "meshwright.Strategy[]"},
      {"microbatch",
       "integer|integer[]|meshwright.Microbatch|fun(step: integer): integer|integer[]|table"},
      {"observe", "fun(step: integer, facts: meshwright.Facts): table<string, number|boolean>?"}};
  const auto found = groups.find(option.name);
  return found != groups.end() ? found->second : lua_type(option);
}

std::string bare(const Options& options) {
  for (const Option& option : options.list()) {
    if (option.name == options.positional()) return "|" + lua_type(option);
  }
  return "";
}

// The class of what a constructor makes.
std::string class_of(Kind kind) {
  if (kind == Kind::lr_schedule) return "Schedule";
  std::string name = name_of(kind);
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

// "model", or "kit.lion" of what is no plugin's own: in names of classes.
std::string key_of(const PluginDescriptor& plugin, const Registration& one) {
  const bool own = plugin.count == 1 || std::string(plugin.name) == one.name;
  return own ? plugin.name : fmt::format("{}.{}", plugin.name, one.name);
}

// What mw.plugins("name") yields: a function, with what else the plugin registers as fields.
std::string plugin_types(const PluginDescriptor& plugin) {
  std::string text, fields_text, call;
  for (std::size_t i = 0; i < plugin.count; ++i) {
    const Registration& one = plugin.registrations[i];
    const Options& options = one.options();
    if (one.kind == Kind::op) continue;  // a method of values
    const std::string key = key_of(plugin, one), made = class_of(one.kind);
    const std::string type = fmt::format("fun(options?: meshwright.plugin.{}{}): meshwright.{}",
                                         key, bare(options), made);
    if (key == plugin.name) {
      text += fmt::format("---@class meshwright.plugin.{}\n{}\n", key, fields(options));
      call = fmt::format("---{}\n---@overload {}\n", one.doc, type);
    } else if (!options.list().empty()) {
      text += fmt::format("---@class meshwright.plugin.{}\n{}\n", key, fields(options));
      const std::string_view name = one.name;  // "zb-h1" is no name in Lua
      const bool plain = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == name.npos;
      fields_text +=
          fmt::format("---@field {} {} {}\n",
                      plain ? std::string(name) : fmt::format("[\"{}\"]", name), type, one.doc);
    }
  }
  return text + fmt::format("{}---@class meshwright.make.{}\n{}\n", call, plugin.name, fields_text);
}

// Options that hold more than their declarations say.
std::map<std::string, std::string> types_of(const Registration& one) {
  if (one.kind != Kind::model || std::string(one.name) != "model") return {};
  const char* part = "fun(x: meshwright.Value): meshwright.Value?";
  return {{"dims", "table<string, integer|table>"},
          {"block", "fun(x: meshwright.Value, layer: integer): meshwright.Value?"},
          {"embed", part},
          {"head", part}};
}

// What a block of mw.model computes with: a method for each op.
std::string value_types(PluginRegistry& plugins) {
  std::vector<const PluginDescriptor*> all{&built_in()};
  for (const PluginFile& plugin : plugins.files()) {
    if (plugin.problem.empty()) all.push_back(plugin.descriptor);
  }
  std::string classes, methods;
  for (const PluginDescriptor* plugin : all) {
    for (std::size_t i = 0; i < plugin->count; ++i) {
      const Registration& one = plugin->registrations[i];
      if (one.kind != Kind::op) continue;
      classes += fmt::format(
          "---@class meshwright.op.{}\n---@field name? string of the op and its parameters\n{}\n",
          one.name, fields(one.options()));
      methods += fmt::format(
          "---@field {0} fun(self: meshwright.Value, ...: meshwright.Value|meshwright.op.{0}|string"
          "): meshwright.Value, meshwright.Value? {1}\n",
          one.name, one.doc);
    }
  }
  return classes +
         "---A value over named dims, in a block of mw.model.\n---@class meshwright.Value\n"
         "---@operator add(meshwright.Value): meshwright.Value\n" +
         methods + '\n';
}

// The types of what nothing declares, which lua/meshwright/types.lua has after its head.
std::string hand_written() {
  const std::filesystem::path path = lua_library() / "meshwright/types.lua";
  const std::string text = whole_file(path).value_or("");
  static constexpr std::string_view head = "local mw = {}\n\n";
  const std::size_t begin = text.find(head);
  if (begin != std::string::npos) return text.substr(begin + head.size());
  throw Error(Stage::environment, "kit.templates", "",
              fmt::format("{} is missing or cut off", path.string()), "build or install again");
}

std::string sweep_types() {
  const std::string grid = "table<string, any>|table<string, any>[]";
  return "---@class meshwright.SweepTable\n" +
         fields(sweep_options(), {{"base", "meshwright.Experiment"},
                                  {"over", grid},
                                  {"skip", "fun(cell: meshwright.CellSoFar): string?"},
                                  {"same_loss_as", "string|table"},
                                  {"repeats", "integer|table"}}) +
         "\n---@class meshwright.GoOptions\n" +
         fields(go_options(), {{"only", "string|string[]"}}) + '\n';
}

// The types of mw.search.
std::string search_types() {
  std::string text =
      "---What may be chosen, and an experiment.\n---@class meshwright.SearchTable\n";
  static const std::map<std::string, std::string> own = {{"strategies", "(string|table)[]"},
                                                         {"schedules", "string[]"},
                                                         {"microbatch", "integer|integer[]"}};
  const auto& known = experiment_options().list();
  for (Option option : search_options().list()) {
    const auto same = std::find_if(known.begin(), known.end(),
                                   [&](const Option& one) { return one.name == option.name; });
    const auto other = own.find(option.name);
    option.optional = option.name != "model" && option.name != "batch" && option.name != "cluster";
    text += field(option, other != own.end()    ? other->second
                          : same != known.end() ? experiment_type(*same)
                                                : lua_type(option));
  }
  return text + "\n";
}

std::string strategy_types() {
  std::string text = "---@class meshwright.StrategyAxis\n";
  text += fields(strategy_axis_options()) + '\n';
  text += "---@class meshwright.StrategyRule\n" +
          fields(strategy_rule_options(), {{"where", "fun(op: meshwright.Op): boolean?"}}) + '\n';
  text += "---@class meshwright.StrategyStore\n" +
          fields(strategy_store_options(),
                 {{"where", "fun(parameter: meshwright.Parameter): boolean?"}}) +
          '\n';
  text += "---@class meshwright.StrategyTable\n" +
          fields(strategy_options(),
                 {{"axis", "string|meshwright.StrategyAxis|meshwright.StrategyAxis[]"},
                  {"rules",
                   "(string|meshwright.StrategyRule)[]|fun(plan: meshwright.RulesRequest): "
                   "(string|meshwright.StrategyRule)[]"},
                  {"store", "(string|meshwright.StrategyStore)[]"}}) +
          '\n';
  return text;
}

// Whether a table of the kind lies in results of other kinds, and is no result by itself.
bool is_part(const std::string& kind) {
  return kind == "predicted" || kind == "timing";
}

std::string result_class(const std::string& kind) {
  if (result_fields(kind).empty()) return "meshwright.Result";
  std::string name = kind;
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return "meshwright." + name + (is_part(kind) ? "" : "Result");
}

std::string result_types(const AppHost& host) {
  std::vector<std::string> kinds = {"predicted", "timing", "loaded"};
  for (const Verb& verb : host.verbs()) kinds.push_back(verb.name);
  std::string text;
  for (const std::string& kind : kinds) {
    if (result_fields(kind).empty()) continue;
    text += fmt::format("---@class {}{}\n", result_class(kind),
                        is_part(kind) ? "" : ": meshwright.Result");
    for (const ResultField& field : result_fields(kind)) {
      std::string type = field.type;
      const bool optional = type.ends_with('?');
      if (optional) type.pop_back();
      text += fmt::format("---@field {}{} {}{}{}\n", field.name, optional ? "?" : "", type,
                          field.doc.empty() ? "" : " ", field.doc);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string lua_types(PluginRegistry& plugins) {
  Output silent(false);
  const AppHost host(silent, plugins);
  std::string text =
      "---@meta meshwright\n"
      "-- Made by `meshwright lua-types` from the options that the program declares. Do not "
      "edit.\n\n"
      "---@class meshwright\nlocal mw = {}\n\n";
  text += result_types(host);
  text += "---@class meshwright.Experiment\n";
  for (const Option& option : host.experiment().list())
    text += field(option, experiment_type(option));
  text += '\n' + search_types();
  for (const Verb& verb : host.verbs()) {
    if (verb.name == "what_if") continue;  // takes knobs too: types.lua
    text += fmt::format("---{}\n", verb.doc);
    std::vector<std::string> names;
    for (int i = 0; i < verb.experiments; ++i) {
      names.emplace_back(1, static_cast<char>('a' + i));
      if (verb.experiments == 1) names.back() = "experiment";
      text += fmt::format("---@param {} meshwright.{}\n", names.back(),
                          verb.name == "search" ? "SearchTable" : "Experiment");
    }
    text += fmt::format("---@return {}\nfunction mw.{}({}) end\n\n", result_class(verb.name),
                        verb.name, join(names));
  }
  text += value_types(plugins);
  std::set<std::string> tables;
  for (const Constructor& constructor : host.constructors()) {
    const std::string within = constructor.name.substr(0, constructor.name.find('.'));
    if (within != constructor.name && tables.insert(within).second)
      text += fmt::format("mw.{} = {{}}\n\n", within);
    const Registration& one = *constructor.registration;
    text += fmt::format("---@class meshwright.{}\n{}\n", constructor.name,
                        fields(one.options(), types_of(one)));
    text += fmt::format(
        "---{}\n---@param options? meshwright.{}{}\n---@return meshwright.{}\nfunction "
        "mw.{}(options) end\n\n",
        one.doc, constructor.name, bare(one.options()), class_of(one.kind), constructor.name);
  }
  std::string known, overloads;
  for (const PluginFile& plugin : plugins.files()) {
    if (!plugin.problem.empty()) continue;
    const std::string name = plugin.name();
    text += plugin_types(*plugin.descriptor);
    known += (known.empty() ? "" : "|") + quote(name);
    overloads += fmt::format("---@overload fun(name: {}): meshwright.make.{}\n", quote(name), name);
  }
  if (known.empty()) known = "string";
  text += fmt::format(
      "---Plugins by name: `local one, other = mw.plugins(\"one\", \"other\")`.\n"
      "---@param ... {}\n---@return fun(options?: table|integer): meshwright.Strategy ...\n"
      "function mw.plugins(...) end\n\n"
      "{}{}---A plugin by name, or by the path of its file: `mw.plugin \"./my_tp.so\"`.\n{}"
      "---@param name string\n---@return fun(options?: table|integer): meshwright.Strategy\n"
      "function mw.plugin(name) end\n\n{}",
      known, sweep_types(), strategy_types(), overloads, hand_written());
  return text;
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
