// `meshwright plugins list` and `plugins show NAME`: what can be composed, by kind, and the
// options of each.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "app/command.h"
#include "app/joined.h"
#include "app/model_text.h"
#include "app/option_text.h"
#include "app/script_command.h"
#include "app/texts.h"
#include "lua/cluster_files.h"
#include "lua/script.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

Json json_of(const PluginDescriptor& plugin, const std::string& file) {
  Json line = {{"kind", "plugin"},
               {"name", plugin.name},
               {"version", plugin.version},
               {"summary", plugin.summary},
               {"file", file.empty() ? Json() : Json(file)},
               {"status", "ok"}};
  line["brings"] = Json::array();
  for (const Registration& one : registrations_of(plugin)) {
    line["brings"].push_back(
        {{"kind", name_of(one.kind)}, {"name", one.name}, {"summary", one.doc}});
  }
  return line;
}

// The cluster files that mw.cluster finds by name, plugins' clusters apart.
std::vector<ClusterFile> all_cluster_files(const PluginRegistry& plugins) {
  std::vector<ClusterFile> all = cluster_files(lua_library().parent_path() / "clusters", ".lua");
  std::erase_if(all, [](const ClusterFile& one) { return one.name == "names"; });
  for (const auto& folder : plugins.folders()) {
    for (ClusterFile& one : cluster_files(folder, cluster_ending)) all.push_back(std::move(one));
  }
  return all;
}

// The stack files that mw.stack finds by name.
std::vector<ClusterFile> all_stack_files() {
  std::vector<ClusterFile> all =
      cluster_files(lua_library().parent_path() / "clusters/stacks", ".lua");
  // a part of other stacks
  std::erase_if(all, [](const ClusterFile& one) { return one.name == "ops"; });
  return all;
}

// Entries that no plugin here brings: threads, which are no communicator, and plugins that this
// build lacks.
std::vector<Json> shipped(const PluginRegistry& plugins) {
  std::vector<Json> lines = {
      {{"kind", name_of(Kind::communicator)},
       {"name", by_itself},
       {"summary", "ranks are threads of one process; several each run by themselves"},
       {"file", nullptr},
       {"status", "ok"}}};
  for (const LeftOutPlugin& one : plugins.left_out()) {
    lines.push_back({{"kind", one.kind},
                     {"name", one.name},
                     {"summary", one.summary},
                     {"file", nullptr},
                     {"status", "not built"},
                     {"hint", fmt::format("{}: {}", one.why, one.hint)}});
  }
  return lines;
}

}  // namespace

Json json_of(const ClusterFile& one) {
  Json line = {{"kind", "plugin"},   {"name", one.name},          {"version", nullptr},
               {"summary", one.doc}, {"file", one.file.string()}, {"status", "ok"}};
  line["brings"] = Json::array({{{"kind", name_of(Kind::cluster)}, {"name", one.name}}});
  return line;
}

Json json_of_broken(const PluginFile& plugin) {
  Json line = {{"kind", "plugin"},    {"name", plugin.name()},        {"version", nullptr},
               {"summary", nullptr},  {"file", plugin.file.string()}, {"status", "broken"},
               {"code", plugin.code}, {"reason", plugin.problem},     {"hint", plugin.hint}};
  if (plugin.descriptor != nullptr) {
    line["version"] = plugin.descriptor->version;
    line["summary"] = plugin.descriptor->summary;
  }
  return line;
}

namespace {

Json json_of_stack(const ClusterFile& one) {
  return {{"kind", "stack"},
          {"name", one.name},
          {"summary", one.doc},
          {"file", one.file.string()},
          {"status", "ok"}};
}

// Writes the lines as JSON, or a text for people. `more`: further values from which the text is
// made.
void write_lines(const Json& lines, Json more, Output& output) {
  for (const Json& line : lines) output.result(line);
  if (output.json()) return;
  more["stack_noun"] = "stack of a cluster";
  for (auto kind = Kind::strategy; kind <= last_kind;
       kind = static_cast<Kind>(static_cast<std::uint32_t>(kind) + 1))
    more["nouns"][name_of(kind)] = noun_of(kind);
  if (!more.contains("lines")) more["lines"] = lines;
  output.text(from_library("plugins", more));
}

}  // namespace

// All plugins of the path: name, version, summary, file; broken ones with their reasons.
int list_plugins(const Arguments& arguments, Output& output) {
  PluginRegistry plugins = registry_of(arguments);
  Json broken = Json::array(), lines = Json::array({json_of(built_in(), "")});
  for (const PluginFile& plugin : plugins.files()) {
    if (plugin.problem.empty())
      lines.push_back(json_of(*plugin.descriptor, plugin.file.string()));
    else
      broken.push_back(json_of_broken(plugin));
  }
  for (const ClusterFile& one : all_cluster_files(plugins)) lines.push_back(json_of(one));
  for (const ClusterFile& one : all_stack_files()) lines.push_back(json_of_stack(one));
  for (Json& one : shipped(plugins)) lines.push_back(std::move(one));
  lines.insert(lines.begin(), broken.begin(), broken.end());
  Json searched = Json::array();
  for (const auto& folder : plugins.folders()) searched.push_back(folder.string());
  write_lines(
      lines,
      {{"searched", searched}, {"clusters", (lua_library().parent_path() / "clusters").string()}},
      output);
  return 0;
}

namespace {

// Collects what `plugins show NAME` prints of a name, whoever brings it.
class ShownThings {
 public:
  explicit ShownThings(Output& output) : output_(output) {}

  void add(const PluginDescriptor& plugin, const std::vector<const Registration*>& shown) {
    Json line = json_of(plugin, "");
    line["torch"] = plugin.torch;
    line["toolchain"] = plugin.toolchain;
    line["brings"] = Json::array();
    line.erase("file");
    // the line for people, which says how a script writes each
    Json& told = told_.emplace_back(line);
    for (const Registration* one : shown) {
      line["brings"].push_back({{"kind", name_of(one->kind)},
                                {"name", one->name},
                                {"summary", one->doc},
                                {"positional", one->options().positional()},
                                {"options", options_json(one->options())}});
      told["brings"].push_back(line["brings"].back());
      told["brings"].back().update(
          {{"own", plugin.count == 1 || std::string(one->name) == plugin.name},
           {"constructor", constructor_of(one->kind, one->name)}});
    }
    lines_.push_back(std::move(line));
  }
  void add(const Json& line) {
    lines_.push_back(line);
    told_.push_back(line);
  }

  bool any() const { return !lines_.empty(); }
  void print() {
    write_lines(lines_, {{"show", true}, {"lines", told_}, {"built_in", built_in().name}}, output_);
  }

 private:
  Output& output_;
  Json lines_ = Json::array();
  Json told_ = Json::array();
};

std::vector<const Registration*> all_of(const PluginDescriptor& plugin) {
  std::vector<const Registration*> all;
  for (const Registration& one : registrations_of(plugin)) all.push_back(&one);
  return all;
}

}  // namespace

// One plugin's options: types, ranges, defaults, docs.
int show_plugin(PluginRegistry& plugins, const std::string& name, Output& output) {
  ShownThings shown(output);
  if (name.find('/') != std::string::npos || name.ends_with(".so")) {
    const PluginDescriptor& plugin = plugins.load(name);
    shown.add(plugin, all_of(plugin));
    shown.print();
    return 0;
  }
  for (const NamedThing& one : plugins.named(name)) shown.add(*one.plugin, one.registrations);
  std::vector<std::string> others;  // names that no plugin's file has
  for (const ClusterFile& one : all_cluster_files(plugins)) {
    others.push_back(one.name);
    if (one.name != name) continue;
    Json line = json_of_stack(one);
    line["kind"] = name_of(Kind::cluster);
    shown.add(line);
  }
  for (const ClusterFile& one : all_stack_files()) {
    others.push_back(one.name);
    if (one.name == name) shown.add(json_of_stack(one));
  }
  for (const Json& one : shipped(plugins)) {
    others.push_back(one.at("name"));
    if (others.back() == name) shown.add(one);
  }
  if (!shown.any()) plugins.refuse(name, others);
  shown.print();
  return 0;
}

namespace {

struct ShowPluginArguments : Arguments {
  std::string plugin, of_model;
};

// Shows a plugin or a model. The models of a script are those of its plans.
int show_plugin_or_model(const ShowPluginArguments& arguments, Output& output) {
  const std::string& name = arguments.of_model;
  if (name.ends_with(".lua") || name == "-") {
    ScriptArguments script;
    static_cast<Arguments&>(script) = arguments;
    script.script = name;
    script.host.models = true;
    return run_script(script, "plan", output);
  }
  PluginRegistry plugins = registry_of(arguments);
  if (!name.empty()) return show_model(plugins, name, arguments.settings, output);
  if (!arguments.plugin.empty()) return show_plugin(plugins, arguments.plugin, output);
  throw Error(
      Stage::script, "usage.missing", "", "plugins show: NAME is missing",
      "see meshwright plugins show --help; for example plugins show llama, or --model llama");
}

const CommandOf<Arguments> plugins_commands = command_group(
    {"plugins", 90, "list and show plugins; make and test your own: list, show, new, test"});

const CommandOf<Arguments> plugins_list_command{
    {"plugins list", 91,
     "all that is built in and on the path, by kind; broken plugins with their reasons"},
    [](CLI::App& command, Arguments& a) { add_common(command, a); },
    list_plugins};

const CommandOf<ShowPluginArguments> plugins_show_command{
    {"plugins show", 92, "options with types, ranges and defaults"},
    [](CLI::App& command, ShowPluginArguments& a) {
      CLI::Option* named = command.add_option(
          "NAME", a.plugin, "a plugin, the path of its file, or what is built in: llama, adamw");
      CLI::Option* model =
          command.add_option("--model", a.of_model,
                             "a model by name, or that of a script: its dims, ops and parameters, "
                             "for rules about them");
      model->type_name("MODEL|SCRIPT")->excludes(named);
      add_settings(command, a);
      command.footer(
          "Examples: meshwright plugins show NAME, of those that plugins list names\n"
          "          meshwright plugins show --model llama");
      add_common(command, a);
    },
    show_plugin_or_model};

}  // namespace
}  // namespace mw
