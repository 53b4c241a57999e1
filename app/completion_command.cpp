// The command completion: prints a script with which bash or zsh completes the program's
// command line. Words are those of the parser: commands, options and the values that they may have;
// the keys of an experiment for --set; and the names of clusters, stacks, schedules and
// communicators.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <system_error>

#include "app/command.h"
#include "app/texts.h"
#include "lua/script.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "predict/cluster.h"
#include "predict/stack.h"
#include "script/read_experiment.h"
#include "script/registered_keys.h"

namespace mw {
namespace {

constexpr std::size_t longest_about = 72;

struct CompletionArguments : Arguments {
  std::string shell;
  const CLI::App* root = nullptr;  // the parser of the whole command line
};

// Words that the parser does not know: names of registered things and of description files.
struct Names {
  std::vector<std::string> clusters, stacks, schedules, communicators;
  // Completions for --set. `keys` are those of the first level, "steps=", or "optimizer." where it
  // has keys of its own; `deep_keys` are those below, "optimizer.lr=".
  std::vector<std::string> keys, deep_keys;
};

// The first clause of a description, on one line.
std::string short_about(const std::string& text) {
  std::string about = text.substr(0, text.find_first_of(";\n"));
  if (const std::size_t colon = about.find(": "); colon != std::string::npos) about.resize(colon);
  if (about.size() <= longest_about) return about;
  about.resize(about.rfind(' ', longest_about));
  return about + " …";
}

std::vector<std::string> words_in(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

// Adds the names of the description files in a folder.
void add_described(const std::filesystem::path& folder, std::vector<std::string>& names) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().stem();
    if (at->path().extension() == ".lua" && name != "names") names.push_back(name);
  }
}

void add_registered(Kind kind, PluginRegistry& plugins, std::vector<std::string>& names) {
  for (const Registration* one : plugins.all(kind)) names.emplace_back(one->name);
}

void add_keys_of(const std::string& path, const Options& options, std::set<std::string>& keys) {
  for (const Option& option : options.list()) keys.insert(path + "." + option.name + "=");
}

// Keys below the first level, of every registered thing that may be chosen there.
std::set<std::string> deep_keys(PluginRegistry& plugins) {
  constexpr int most_strategies = 6;  // plan[1] to plan[6] get their keys
  std::set<std::string> keys;
  const auto registered = [&](const std::string& path, Kind kind) {
    for (const Registration* one : plugins.all(kind)) add_keys_of(path, one->options(), keys);
  };
  for (const auto& [key, kind] : registered_keys) registered(key, kind);
  for (int s = 1; s <= most_strategies; ++s) registered(fmt::format("plan[{}]", s), Kind::strategy);
  add_keys_of("evaluate", evaluate_options(), keys);
  add_keys_of("export", export_options(), keys);
  add_keys_of("checkpoint", checkpoint_options(), keys);
  add_keys_of("resume", resume_options(), keys);
  add_keys_of("stack", stack_keys(), keys);
  for (const auto& [table, options] : cluster_keys())
    add_keys_of(table.empty() ? "cluster" : "cluster." + table, *options, keys);
  return keys;
}

Names all_names(const Arguments& arguments) {
  PluginRegistry plugins = registry_of(arguments);
  plugins.use_all();
  Names names;
  const std::filesystem::path described = lua_library().parent_path() / "clusters";
  add_described(described, names.clusters);
  add_described(described / "stacks", names.stacks);
  add_registered(Kind::cluster, plugins, names.clusters);
  add_registered(Kind::scheduler, plugins, names.schedules);
  add_registered(Kind::communicator, plugins, names.communicators);
  names.communicators.emplace_back("threads");
  const std::set<std::string> deep = deep_keys(plugins);
  names.deep_keys.assign(deep.begin(), deep.end());
  for (const Option& option : experiment_options().list()) {
    names.keys.push_back(option.name + "=");
    for (const char* within : {".", "["}) {
      const auto first = deep.lower_bound(option.name + within);
      if (first != deep.end() && first->starts_with(option.name + within))
        names.keys.push_back(option.name + within);
    }
  }
  for (auto* each : {&names.clusters, &names.stacks, &names.schedules, &names.communicators}) {
    std::sort(each->begin(), each->end());
    each->erase(std::unique(each->begin(), each->end()), each->end());
  }
  return names;
}

// What may stand in a place of the command line: words, files, one of both ("either"), folders,
// keys, or "none".
Json may_be(const char* kind, const std::vector<std::string>& words = {}) {
  return {{"kind", kind}, {"words", words}};
}

// What the parser knows of an option's values: "TEXT:{steps,memory}", or the type "FILE".
Json place_of(const CLI::Option& option, const std::string& path, bool sets_keys,
              const Names& names) {
  if (option.check_lname("cluster")) return may_be("either", names.clusters);
  if (option.check_lname("stack")) return may_be("either", names.stacks);
  if (option.check_lname("communicator")) return may_be("words", names.communicators);
  if (path == "/schedule" && option.get_positional()) return may_be("either", names.schedules);
  const std::string type = option.get_type_name() + " " + option.get_name();
  if (const std::size_t open = type.find(":{"); open != std::string::npos) {
    const std::size_t close = type.find('}', open);
    return may_be("words", words_in(type.substr(open + 2, close - open - 2)));
  }
  const auto has = [&](const char* word) { return type.find(word) != std::string::npos; };
  if (sets_keys && has("KEY=VALUE")) return may_be("keys");
  if (has("FOLDER")) return may_be("folders");
  if (has("FILE") || has("SCRIPT") || has("LOGS")) return may_be("files");
  return may_be("none");
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

// Adds a command or a group of commands, and all below it. The path of the program is "", that of a
// command "/runs/list".
void add_nodes(const CLI::App& command, const std::string& path, const Names& known, Json& nodes) {
  Json commands = Json::array(), described = Json::array(), values = Json::array();
  Json positional = may_be("none");
  std::vector<const CLI::App*> shown =
      command.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); });
  for (const CLI::App* below : shown)
    commands.push_back(Json::array({below->get_name(), short_about(below->get_description())}));
  const auto options = command.get_options();
  const bool sets_keys = std::any_of(options.begin(), options.end(), [](const CLI::Option* one) {
    return one->check_lname("set");
  });
  for (const CLI::Option* option : options) {
    if (option->get_group().empty()) continue;
    const Json may = place_of(*option, path, sets_keys, known);
    const std::vector<std::string> names = names_of(*option);
    if (names.empty()) positional = may;
    for (const std::string& name : names) {
      described.push_back(Json::array({name, short_about(option->get_description())}));
      if (option->get_items_expected_max() > 0)
        values.push_back({{"option", name}, {"place", may}});
    }
  }
  nodes.push_back({{"path", path},
                   {"commands", commands},
                   {"options", described},
                   {"values", values},
                   {"positional", positional}});
  for (const CLI::App* below : shown)
    add_nodes(*below, path + "/" + below->get_name(), known, nodes);
}

int print_completion(const CompletionArguments& arguments, Output& output) {
  const Names names = all_names(arguments);
  Json nodes = Json::array();
  add_nodes(*arguments.root, "", names, nodes);
  output.document(from_library("completion", {{"shell", arguments.shell},
                                              {"nodes", nodes},
                                              {"keys", names.keys},
                                              {"deep_keys", names.deep_keys}}));
  return 0;
}

const CommandOf<CompletionArguments> completion_command{
    {"completion", 205, "print a script with which a shell completes this program's command line"},
    [](CLI::App& command, CompletionArguments& a) {
      a.root = command.get_parent();
      command.add_option("SHELL", a.shell, "bash or zsh")
          ->required()
          ->check(CLI::IsMember({"bash", "zsh"}));
      command.footer("Example: source <(meshwright completion bash)   # in ~/.bashrc");
    },
    print_completion};

}  // namespace
}  // namespace mw
