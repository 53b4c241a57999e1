// `meshwright plugins list` and `plugins show NAME`: what can be composed, by kind, and the
// options of each.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "app/command.h"
#include "app/joined.h"
#include "app/model_text.h"
#include "app/option_text.h"
#include "app/script_command.h"
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

// How a script writes it; empty where a name in quotes is enough.
std::string usage(const PluginDescriptor& plugin, const Registration& one) {
  const bool own = plugin.count == 1 || std::string(one.name) == plugin.name;
  const std::string name = own ? one.name : fmt::format("{}.{}", plugin.name, one.name);
  const std::string found = fmt::format("local {0} = mw.plugins(\"{0}\")  …  ", plugin.name);
  const bool in_program = &plugin == &built_in();
  const std::string mw = constructor_of(one.kind, one.name);
  switch (one.kind) {
    case Kind::strategy:
      return fmt::format("{}plan = {{ {} {{ … }} }}", found, name);
    case Kind::model:
    case Kind::data:
    case Kind::optimizer:
    case Kind::microbatch:
    case Kind::lr_schedule: {
      const std::string key = one.kind == Kind::lr_schedule ? "schedule" : name_of(one.kind);
      if (in_program) return fmt::format("{} = mw.{} {{ … }}", key, mw);
      return fmt::format("{}{} = {} {{ … }}", found, key, name);
    }
    case Kind::op:
      return fmt::format("y = x:{} {{ … }} in a block of mw.model", one.name);
    case Kind::cluster:
      return fmt::format("cluster = mw.cluster({})", quote(one.name));
    case Kind::recompute:
      return fmt::format("recompute = {}", quote(one.name));
    case Kind::scheduler:
      return fmt::format("{{ schedule = {} }} of a pipeline", quote(one.name));
    case Kind::weave:
      return fmt::format("{{ weave = {} }} of a pipeline", quote(one.name));
    case Kind::hook:
      return fmt::format("{{ hook = {} }} of data parallelism", quote(one.name));
    default:
      return "";
  }
}

std::string text_of(const PluginDescriptor& plugin, const Registration& one) {
  std::string text = fmt::format("{} {}: {}\n\n", noun_of(one.kind), one.name, one.doc);
  text += options_text(one.options(), "  ");
  const std::string how = usage(plugin, one);
  if (!how.empty()) text += fmt::format("\nIn a script:  {}\n", how);
  return text;
}

// What mw.cluster takes by name and no plugin brings.
std::vector<ClusterFile> all_cluster_files(const PluginRegistry& plugins) {
  std::vector<ClusterFile> all = cluster_files(lua_library().parent_path() / "clusters", ".lua");
  std::erase_if(all, [](const ClusterFile& one) { return one.name == "names"; });
  for (const auto& folder : plugins.folders()) {
    for (ClusterFile& one : cluster_files(folder, cluster_ending)) all.push_back(std::move(one));
  }
  return all;
}

// A file's name, its folder being added to those that are named once; its path, where a file of
// another folder has that name.
class FileNames {
 public:
  std::string operator()(const std::filesystem::path& file) {
    const auto [known, added] =
        folder_of_.try_emplace(file.filename().string(), file.parent_path().string());
    if (known->second != file.parent_path().string()) return file.string();
    if (added) folders_.insert(known->second);
    return known->first;
  }
  const std::set<std::string>& folders() const { return folders_; }

 private:
  std::map<std::string, std::string> folder_of_;
  std::set<std::string> folders_;
};

// What can be composed, by kind: a line of each or several, none wider than a terminal.
class Listing {
 public:
  // `source`: of whose file and version it is; empty: built in.
  void add(const std::string& kind, const std::string& name, const std::string& doc,
           const std::string& source = "") {
    if (kinds_.empty() || kinds_.back().first != kind) kinds_.push_back({kind, {}});
    std::string text = doc;
    if (text.ends_with('.')) text.pop_back();
    kinds_.back().second.push_back({name, source.empty() ? text : text + " (" + source + ")"});
    widest_ = std::max(widest_, name.size());
  }

  std::string text() const {
    std::string text;
    for (const auto& [kind, entries] : kinds_) {
      text += (text.empty() ? "" : "\n") + kind + "\n";
      for (const auto& [name, doc] : entries) {
        const std::string begin = fmt::format("  {:{}}  ", name, widest_);
        text += begin + wrapped(doc, terminal - begin.size(), begin.size()) + "\n";
      }
    }
    return text;
  }

 private:
  static constexpr std::size_t terminal = 80;
  std::vector<std::pair<std::string, std::vector<std::pair<std::string, std::string>>>> kinds_;
  std::size_t widest_ = 0;
};

constexpr const char* stack_noun = "stack of a cluster";

// What mw.stack takes by name.
std::vector<ClusterFile> all_stack_files() {
  std::vector<ClusterFile> all =
      cluster_files(lua_library().parent_path() / "clusters/stacks", ".lua");
  std::erase_if(all, [](const ClusterFile& one) { return one.name == "ops"; });  // a part of others
  return all;
}

// The communicators that ship and that nobody has registered here.
std::vector<const ShippedCommunicator*> unregistered(PluginRegistry& plugins) {
  std::vector<const ShippedCommunicator*> rest;
  const std::vector<const Registration*> there = plugins.all(Kind::communicator);
  for (const ShippedCommunicator& one : shipped_communicators()) {
    if (std::none_of(there.begin(), there.end(), [&](const Registration* other) {
          return std::string(other->name) == one.name;
        }))
      rest.push_back(&one);
  }
  return rest;
}

std::string text_of(const ShippedCommunicator& one) {
  return one.how == nullptr ? one.doc : fmt::format("{}; not built here: {}", one.doc, one.how);
}

Json json_of(const ShippedCommunicator& one) {
  Json line = {{"kind", name_of(Kind::communicator)},
               {"name", one.name},
               {"summary", one.doc},
               {"file", nullptr},
               {"status", one.how == nullptr ? "ok" : "not built"}};
  if (one.how != nullptr) line["hint"] = one.how;
  return line;
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

// All plugins of the path: name, version, summary, file; broken ones with their reasons.
int list_plugins(const Arguments& arguments, Output& output) {
  PluginRegistry plugins = registry_of(arguments);
  Listing listing;
  FileNames names;
  std::vector<std::pair<const PluginDescriptor*, std::string>> good = {{&built_in(), ""}};
  std::string broken;
  for (const PluginFile& plugin : plugins.files()) {
    if (plugin.problem.empty()) {
      good.emplace_back(plugin.descriptor, plugin.file.string());
      continue;
    }
    output.result(json_of_broken(plugin));
    broken += fmt::format("  {}: {}\n", plugin.file.string(), plugin.problem);
    if (!plugin.hint.empty()) broken += fmt::format("    {}\n", plugin.hint);
  }
  for (const auto& [plugin, file] : good) output.result(json_of(*plugin, file));
  const std::vector<ClusterFile> clusters = all_cluster_files(plugins), stacks = all_stack_files();
  for (const ClusterFile& one : clusters) output.result(json_of(one));
  for (const ClusterFile& one : stacks) {
    output.result({{"kind", "stack"},
                   {"name", one.name},
                   {"summary", one.doc},
                   {"file", one.file.string()},
                   {"status", "ok"}});
  }
  const std::vector<const ShippedCommunicator*> communicators = unregistered(plugins);
  for (const ShippedCommunicator* one : communicators) output.result(json_of(*one));
  if (output.json()) return 0;
  for (auto kind = Kind::strategy; kind <= last_kind;
       kind = static_cast<Kind>(static_cast<std::uint32_t>(kind) + 1)) {
    for (const auto& [plugin, file] : good) {
      for (const Registration& one : registrations_of(*plugin)) {
        if (one.kind == kind)
          listing.add(noun_of(kind), one.name, one.doc,
                      file.empty() ? "" : fmt::format("{} {}", names(file), plugin->version));
      }
    }
    if (kind == Kind::communicator) {
      for (const ShippedCommunicator* one : communicators)
        listing.add(noun_of(kind), one->name, text_of(*one));
    }
    if (kind != Kind::cluster) continue;
    for (const ClusterFile& one : clusters) {
      const bool ships = one.file.parent_path() == lua_library().parent_path() / "clusters";
      listing.add(noun_of(kind), one.name, one.doc, ships ? "" : names(one.file));
    }
    for (const ClusterFile& one : stacks) listing.add(stack_noun, one.name, one.doc);
  }
  std::string text = listing.text();
  if (!names.folders().empty())
    text += "\nplugins without a file are built in; the others are in:\n";
  for (const std::string& folder : names.folders()) text += fmt::format("  {}\n", folder);
  if (!broken.empty()) text += "\nbroken:\n" + broken;
  if (good.size() == 1) {
    text += "\nno plugins; searched:\n";
    for (const auto& folder : plugins.folders()) text += fmt::format("  {}\n", folder.string());
  }
  output.text(text);
  return 0;
}

namespace {

// The comment that a described cluster or stack begins with.
std::string opening_comment(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string text;
  for (std::string line; std::getline(in, line) && line.starts_with("--");)
    text += "  " + line.substr(std::min(line.size(), line.find_first_not_of("- "))) + "\n";
  return text;
}

// What stands for a name in the list, whoever brings it.
class Shown {
 public:
  explicit Shown(Output& output) : output_(output) {}

  void add(const PluginDescriptor& plugin, const std::vector<const Registration*>& shown) {
    Json line = json_of(plugin, "");
    line["torch"] = plugin.torch;
    line["toolchain"] = plugin.toolchain;
    line["brings"] = Json::array();
    const bool is_built_in = &plugin == &built_in();
    if (!is_built_in) part(fmt::format("{} {}: {}\n", plugin.name, plugin.version, plugin.summary));
    for (const Registration* one : shown) {
      line["brings"].push_back({{"kind", name_of(one->kind)},
                                {"name", one->name},
                                {"summary", one->doc},
                                {"positional", one->options().positional()},
                                {"options", options_json(one->options())}});
      part(text_of(plugin, *one));
    }
    line.erase("file");
    output_.result(line);
    text_ += is_built_in ? "Built in\n"
                         : fmt::format("Built with torch {}, {}\n", plugin.torch, plugin.toolchain);
  }

  void add(const char* kind, const char* noun, const char* key, const ClusterFile& one) {
    output_.result({{"kind", kind},
                    {"name", one.name},
                    {"summary", one.doc},
                    {"file", one.file.string()},
                    {"status", "ok"}});
    part(fmt::format("{} {}\n\n{}\nIn a script:  {} = mw.{}({})\nDescribed in {}\n", noun, one.name,
                     opening_comment(one.file), key, key, quote(one.name), one.file.string()));
  }

  void add(const ShippedCommunicator& one) {
    output_.result(json_of(one));
    part(fmt::format("{} {}: {}\n", noun_of(Kind::communicator), one.name, one.doc));
    text_ += one.how == nullptr
                 ? fmt::format("\nOn the command line:  --communicator {}\nBuilt in\n", one.name)
                 : fmt::format("\nNot built here: {}\n", one.how);
  }

  bool any() const { return !text_.empty(); }
  void print() {
    if (!output_.json()) output_.text(text_);
  }

 private:
  void part(const std::string& text) { text_ += (text_.empty() ? "" : "\n") + text; }

  Output& output_;
  std::string text_;
};

std::vector<const Registration*> all_of(const PluginDescriptor& plugin) {
  std::vector<const Registration*> all;
  for (const Registration& one : registrations_of(plugin)) all.push_back(&one);
  return all;
}

}  // namespace

// One plugin's options: types, ranges, defaults, docs.
int show_plugin(PluginRegistry& plugins, const std::string& name, Output& output) {
  Shown shown(output);
  if (name.find('/') != std::string::npos || name.ends_with(".so")) {
    const PluginDescriptor& plugin = plugins.load(name);
    shown.add(plugin, all_of(plugin));
    shown.print();
    return 0;
  }
  for (const NamedThing& one : plugins.named(name)) shown.add(*one.plugin, one.registrations);
  std::vector<std::string> others;  // that no file of a plugin has
  for (const ClusterFile& one : all_cluster_files(plugins)) {
    others.push_back(one.name);
    if (one.name == name) shown.add(name_of(Kind::cluster), noun_of(Kind::cluster), "cluster", one);
  }
  for (const ClusterFile& one : all_stack_files()) {
    others.push_back(one.name);
    if (one.name == name) shown.add("stack", stack_noun, "stack", one);
  }
  for (const ShippedCommunicator* one : unregistered(plugins)) {
    others.emplace_back(one->name);
    if (one->name == name) shown.add(*one);
  }
  if (!shown.any()) plugins.refuse(name, others);
  shown.print();
  return 0;
}

namespace {

struct ShowPluginArguments : Arguments {
  std::string plugin, of_model;
};

// A script's models are those of its plans.
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
