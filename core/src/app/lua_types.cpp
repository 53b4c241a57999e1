// Annotations for the Lua language server, from the same declarations that check scripts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "app/app_host.h"
#include "app/commands.h"
#include "app/option_text.h"
#include "app/result_fields.h"
#include "base/text.h"
#include "plugin/built_in.h"
#include "script/read_search.h"
#include "script/script_strategy.h"
#include "sweep/table.h"

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
      fields_text += fmt::format("---@field {} {} {}\n", one.name, type, one.doc);
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

// Not declared anywhere: lua/meshwright/init.lua makes it.
constexpr const char* chart_types =
    "---@class meshwright.BarChart\n---@field file string where to: an HTML file\n"
    "---@field title? string\n---@field unit? string of the numbers\n"
    "---@field series string[] what a group's bars show, in order\n"
    "---@field bars (string|number)[][] a group each: its name, and a number for each of the "
    "series\n\n"
    "---Writes a page of horizontal bars and their numbers.\n---@param chart meshwright.BarChart\n"
    "---@return string file\nfunction mw.bar_chart(chart) end\n\n"
    "---Hardware that a plan is priced for: of clusters/, or a file by its path.\n"
    "---@param name string\n---@param changes? table of its keys: { nodes = 8 }\n"
    "---@return table\nfunction mw.cluster(name, changes) end\n\n"
    "---Failures of a run on many devices. Times in seconds.\n---@class meshwright.GoodputRequest\n"
    "---@field plan? meshwright.Result what mw.plan returned; or step_seconds and devices\n"
    "---@field step_seconds? number\n---@field devices? number\n"
    "---@field mtbf number between failures of one device\n"
    "---@field checkpoint_seconds number that training stands still for each\n"
    "---@field restart_seconds number from a failure to the first step after it\n"
    "---@field interval_seconds? number between checkpoints; left out: the best\n"
    "---@field days? number to simulate, at least\n---@field seed? integer\n"
    "---@field stragglers? { mtbf: number, seconds: number, slowdown: number } slow devices\n\n"
    "---@class meshwright.Goodput\n---@field kind string\n"
    "---@field effective number share of the time in which steps are made that are kept\n"
    "---@field closed_form number the same by Daly's formula\n"
    "---@field lost { repeated: number, checkpoints: number, restarts: number, stragglers: number "
    "}\n"
    "---@field interval_seconds number\n---@field interval_steps integer\n"
    "---@field young_seconds number\n---@field daly_seconds number\n---@field best_seconds number\n"
    "---@field failure_seconds number between failures of the run\n---@field failures_per_day "
    "number\n"
    "---@field steps_per_day number\n---@field simulated_failures integer\n\n"
    "---The share of its time in which a run that fails and restarts gets on.\n"
    "---@param request meshwright.GoodputRequest\n---@return meshwright.Goodput\n"
    "function mw.goodput(request) end\n\n"
    "---The software on a cluster.\n---@param name string\n---@param changes? table\n"
    "---@return table\nfunction mw.stack(name, changes) end\n\n";

constexpr const char* load_types =
    "---A run's result, read back from its file: what mw.train returned, with its steps and "
    "metrics.\n---Of a folder of runs, a sweep's too, a list of them.\n"
    "---@param file string a run file, the folder of a run or of a sweep, or a folder of these\n"
    "---@return meshwright.LoadedResult|meshwright.LoadedResult[]\nfunction mw.load(file) end\n\n";

constexpr const char* schedule_types =
    "---What a pipeline schedule is asked for. Virtual stages and microbatches count from 0 as in "
    "\"2F0\"; the lists\n---have an entry for each virtual stage.\n"
    "---@class meshwright.PipelineRequest\n"
    "---@field stages integer\n---@field chunks integer virtual stages of each stage\n"
    "---@field microbatches integer\n"
    "---@field times { forward: number, dgrad: number, wgrad: number }[] in proportion\n"
    "---@field memory? number limit of a stage's activations, bytes\n"
    "---@field bytes? { forward: number, dgrad: number }[] what F leaves, and what I still leaves "
    "for W\n\n"
    "---A pipeline schedule of one's own, for a pipeline's `schedule = …`: a list with the actions "
    "of each stage,\n---`\"0F0 0F1 0B0 0B1\"`.\n"
    "---@overload fun(order: fun(s: meshwright.PipelineRequest): string[]): table\n"
    "---@param name string messages and drawings show it\n"
    "---@param order fun(s: meshwright.PipelineRequest): string[]\n---@return table\n"
    "function mw.schedule(name, order) end\n\n";

// Of mw.sweep; rows of cells have what trainings have too.
std::string sweep_types() {
  const std::string grid = "table<string, any>|table<string, any>[]";
  return "---What `over` and `skip` are told of a cell: the axes' values by their keys.\n"
         "---@class meshwright.CellSoFar\n---@field name string\n---@field [string] any\n\n"
         "---@class meshwright.Cell\n---@field sweep string\n---@field name string\n"
         "---@field status \"done\"|\"failed\"|\"refused\"|\"skipped\"|\"predicted\"|\"running\"|"
         "\"queued\"\n---@field reason? string\n"
         "---@field reused boolean found done\n---@field values table<string, string> by axis\n"
         "---@field hash? string\n---@field folder? string\n---@field seconds? number\n"
         "---@field losses? number[]\n---@field tokens_per_second? number\n"
         "---@field peak_bytes? integer\n---@field predicted? table\n---@field [string] any\n\n"
         "---@class meshwright.SweepTable\n" +
         fields(sweep_options(), {{"base", "meshwright.Experiment"},
                                  {"over", grid},
                                  {"skip", "fun(cell: meshwright.CellSoFar): string?"},
                                  {"same_loss_as", "string|table"},
                                  {"repeats", "integer|table"}}) +
         "\n---@class meshwright.GoOptions\n" +
         fields(go_options(), {{"only", "string|string[]"}}) +
         "\n---@class meshwright.Sweep\n---@field name string\n---@field folder string\n"
         "---@field go fun(self: meshwright.Sweep, options?: meshwright.GoOptions): "
         "meshwright.Cell[] runs what is not done\n"
         "---@field report fun(self: meshwright.Sweep, file: string, options?: table): string\n\n"
         "---A grid of experiments, each run in a process of its own.\n"
         "---@param sweep meshwright.SweepTable\n---@return meshwright.Sweep\n"
         "function mw.sweep(sweep) end\n\n";
}

// Of mw.search.
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

// Of mw.strategy; what the script's functions get is made in script/strategy_rules.cpp.
std::string strategy_types() {
  std::string text =
      "---An op of the model, as `where` of a strategy's rule is asked about it.\n"
      "---@class meshwright.Op\n---@field name string \"layers.3.mlp.up\"\n"
      "---@field kind string \"linear\", \"attention\", …\n"
      "---@field layer integer -1 before the first, the number of layers after the last\n"
      "---@field dims string[] all that it computes over\n"
      "---@field has table<string, true> the same as a set\n"
      "---@field whole string[] those that no axis may cut in it\n"
      "---@field inputs string[][] each operand's\n---@field outputs string[][]\n"
      "---@field claimed string[] those that other strategies' rules cut over ranks of this rule's "
      "axis\n\n"
      "---@class meshwright.Parameter\n---@field name string\n---@field dims string[]\n\n"
      "---What `rules` gets where it is a function.\n"
      "---@class meshwright.RulesRequest\n"
      "---@field dims table<string, integer> each dim's size\n"
      "---@field axes table<string, integer> each axis's ways\n---@field layers integer\n\n";
  text += "---@class meshwright.StrategyAxis\n" + fields(strategy_axis_options()) + '\n';
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
  return text +
         "---A strategy of one's own, made of rules. What it returns stands in a plan as a plugin "
         "does: `mine(2)`.\n---@param strategy meshwright.StrategyTable\n"
         "---@return fun(options?: table|integer): meshwright.Strategy\n"
         "function mw.strategy(strategy) end\n\n";
}

std::string result_class(const std::string& kind) {
  if (result_fields(kind).empty()) return "meshwright.Result";
  std::string name = kind;
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return "meshwright." + name + (kind == "predicted" ? "" : "Result");
}

std::string result_types(const AppHost& host) {
  std::vector<std::string> kinds = {"predicted", "loaded"};
  for (const Verb& verb : host.verbs()) kinds.push_back(verb.name);
  std::string text;
  for (const std::string& kind : kinds) {
    if (result_fields(kind).empty()) continue;
    text += fmt::format("---@class {}{}\n", result_class(kind),
                        kind == "predicted" ? "" : ": meshwright.Result");
    for (const ResultField& field : result_fields(kind)) {
      std::string type = field.type;
      const bool optional = type.ends_with('?');
      if (optional) type.pop_back();
      text += fmt::format("---@field {}{} {}{}{}\n", field.name, optional ? "?" : "", type,
                          *field.doc == '\0' ? "" : " ", field.doc);
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
      "---@class meshwright\nlocal mw = {}\n\n"
      "---@class meshwright.Model\n---@class meshwright.Data\n---@class meshwright.Optimizer\n"
      "---@class meshwright.Schedule\n---@class meshwright.Strategy\n---@class "
      "meshwright.Microbatch\n---@class meshwright.Hook\n---@class meshwright.Scheduler\n"
      "---@class meshwright.Recompute\n\n"
      "---What a verb returns. A field that it cannot have is an error.\n"
      "---@class meshwright.Result\n---@field kind string\n---@field text string what print "
      "shows\n\n";
  text += result_types(host);
  text +=
      "---What `observe` is told of a step.\n---@class meshwright.Facts\n"
      "---@field loss number\n---@field grad_norm number before clipping\n---@field lr number\n"
      "---@field tokens integer of the step\n---@field seconds number of the step\n"
      "---@field held_out_loss? number where the step ended with an evaluation\n\n";
  text += "---@class meshwright.Experiment\n";
  for (const Option& option : host.experiment().list())
    text += field(option, experiment_type(option));
  text += '\n' + search_types();
  for (const Verb& verb : host.verbs()) {
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
      "{}{}{}{}{}---A plugin by name, or by the path of its file: `mw.plugin \"./my_tp.so\"`.\n{}"
      "---@param name string\n---@return fun(options?: table|integer): meshwright.Strategy\n"
      "function mw.plugin(name) end\n\nreturn mw\n",
      known, chart_types, load_types, schedule_types, sweep_types(), strategy_types(), overloads);
  return text;
}

int print_lua_types(PluginRegistry& plugins, Output& output) {
  output.text(lua_types(plugins));
  return 0;
}

}  // namespace mw
