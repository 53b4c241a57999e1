// The command completion: prints a script with which bash, zsh or fish completes the program's
// command line. Words are those of the parser: commands, options and the values that they may have;
// the keys of an experiment for --set; and the names of clusters, stacks, schedules and
// communicators.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <system_error>

#include "app/command.h"
#include "lua/script.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "predict/cluster.h"
#include "predict/stack.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

constexpr std::size_t longest_about = 72;

struct CompletionArguments : Arguments {
  std::string shell;
  const CLI::App* root = nullptr;  // the parser of the whole command line
};

// What may stand in a place: one of `words`, or what `kind` says.
struct Place {
  enum Kind { nothing, words_alone, words_or_files, files, folders, keys };
  Kind kind = nothing;
  std::vector<std::string> words;
};

// Words that no parser knows: they are what is registered, and what lies beside the program.
struct Names {
  std::vector<std::string> clusters, stacks, schedules, communicators;
  // For --set, with what follows them: "steps=", "optimizer." where keys are in it; and all keys
  // below the first level, "optimizer.lr=".
  std::vector<std::string> keys, deep_keys;
};

struct Described {
  std::string word, about;
};

struct ValueOption {
  std::vector<std::string> names;  // "--output", "-o"
  Place value;
};

// One command, or what stands above several: "" is the program, "/runs/list" a command.
struct Node {
  std::string path;
  std::vector<Described> commands, options;
  std::vector<ValueOption> with_value;
  Place positional;
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

// The files of a folder of descriptions.
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

// Keys below the first level, of whatever may be chosen there.
std::set<std::string> deep_keys(PluginRegistry& plugins) {
  constexpr int most_strategies = 6;  // of a plan, whose keys are listed
  std::set<std::string> keys;
  const auto registered = [&](const std::string& path, Kind kind) {
    for (const Registration* one : plugins.all(kind)) add_keys_of(path, one->options(), keys);
  };
  registered("model", Kind::model);
  registered("data", Kind::data);
  registered("optimizer", Kind::optimizer);
  registered("schedule", Kind::lr_schedule);
  registered("microbatch", Kind::microbatch);
  registered("recompute", Kind::recompute);
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

// The parser knows what an option may be as "TEXT:{steps,memory}", or its type as "FILE".
Place place_of(const CLI::Option& option, const std::string& path, bool sets_keys,
               const Names& names) {
  if (option.check_lname("cluster")) return {Place::words_or_files, names.clusters};
  if (option.check_lname("stack")) return {Place::words_or_files, names.stacks};
  if (option.check_lname("communicator")) return {Place::words_alone, names.communicators};
  if (path == "/schedule" && option.get_positional())
    return {Place::words_or_files, names.schedules};
  const std::string type = option.get_type_name() + " " + option.get_name();
  if (const std::size_t open = type.find(":{"); open != std::string::npos) {
    const std::size_t close = type.find('}', open);
    return {Place::words_alone, words_in(type.substr(open + 2, close - open - 2))};
  }
  const auto has = [&](const char* word) { return type.find(word) != std::string::npos; };
  if (sets_keys && has("KEY=VALUE")) return {Place::keys, {}};
  if (has("FOLDER")) return {Place::folders, {}};
  if (has("FILE") || has("SCRIPT") || has("LOGS")) return {Place::files, {}};
  return {};
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

Node node_of(const CLI::App& command, const std::string& path, const Names& known) {
  Node node{path, {}, {}, {}, {}};
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    if (!below->get_group().empty())
      node.commands.push_back({below->get_name(), short_about(below->get_description())});
  const auto options = command.get_options();
  const bool sets_keys = std::any_of(options.begin(), options.end(), [](const CLI::Option* one) {
    return one->check_lname("set");
  });
  for (const CLI::Option* option : options) {
    if (option->get_group().empty()) continue;
    const Place place = place_of(*option, path, sets_keys, known);
    const std::vector<std::string> names = names_of(*option);
    if (names.empty()) node.positional = place;
    for (const std::string& name : names)
      node.options.push_back({name, short_about(option->get_description())});
    if (!names.empty() && option->get_items_expected_max() > 0)
      node.with_value.push_back({names, place});
  }
  return node;
}

std::vector<Node> nodes_of(const CLI::App& root, const Names& names) {
  std::vector<Node> nodes;
  const std::function<void(const CLI::App&, const std::string&)> visit =
      [&](const CLI::App& command, const std::string& path) {
        nodes.push_back(node_of(command, path, names));
        for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
          if (!below->get_group().empty()) visit(*below, path + "/" + below->get_name());
      };
  visit(root, "");
  return nodes;
}

// A word of a shell, the same in all three.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string paths_of(const std::vector<Node>& nodes) {
  std::string text;
  for (const Node& node : nodes)
    if (!node.path.empty()) text += (text.empty() ? "" : " | ") + node.path;
  return text;
}

// --- bash and zsh: a table as a `case`, which the function below it looks into ---

// What the function is to do for a place.
std::string action_of(const Place& place) {
  switch (place.kind) {
    case Place::words_alone:
      return fmt::format("kind=words choices=({})", join(place.words, " "));
    case Place::words_or_files:
      return fmt::format("kind=either choices=({})", join(place.words, " "));
    case Place::files:
      return "kind=files";
    case Place::folders:
      return "kind=folders";
    case Place::keys:
      return "kind=keys";
    case Place::nothing:
      break;
  }
  return "kind=none";
}

using Words = std::function<std::string(const std::vector<Described>&)>;

std::string case_table(const std::vector<Node>& nodes, const Words& words_of) {
  std::string text;
  for (const Node& node : nodes) {
    if (!node.commands.empty())
      text +=
          fmt::format("    'commands {}') choices=({}) ;;\n", node.path, words_of(node.commands));
    text += fmt::format("    'options {}') choices=({}) ;;\n", node.path, words_of(node.options));
    for (const ValueOption& option : node.with_value)
      for (const std::string& name : option.names)
        text += fmt::format("    'value {} {}') {} ;;\n", node.path, name, action_of(option.value));
    text += fmt::format("    'positional {}') {} ;;\n", node.path, action_of(node.positional));
  }
  return text;
}

constexpr const char* bash_script =
    R"SH(# Completion of meshwright for bash: source <(meshwright completion bash)
_meshwright_table() {
  kind=none choices=()
  case "$1" in
@TABLE@  esac
}

_meshwright() {
  local current=$2 before=$3 path= word kind choices index
  COMPREPLY=()
  # bash cuts words at "=": "--table=memory" is three of them.
  if [[ $current == '=' ]]; then
    current= before=${COMP_WORDS[COMP_CWORD - 1]}
  elif [[ $before == '=' ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
    [[ $before == -* ]] || return
  fi
  for ((index = 1; index < COMP_CWORD; ++index)); do
    word=${COMP_WORDS[index]}
    [[ $word != -- ]] || { compopt -o default && return; }
    case "$path/$word" in
      @PATHS@) path=$path/$word ;;
    esac
  done
  _meshwright_table "value $path $before"
  if [[ $kind == none ]]; then
    if [[ $current == -* ]]; then
      _meshwright_table "options $path" && kind=words
    else
      _meshwright_table "commands $path"
      if ((${#choices[@]})); then kind=words; else _meshwright_table "positional $path"; fi
    fi
  fi
  case $kind in
    words) COMPREPLY=($(compgen -W "${choices[*]}" -- "$current")) ;;
    files) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    folders) compopt -o filenames && mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    either)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -W "${choices[*]}" -- "$current"; compgen -f -- "$current") ;;
    keys)
      compopt -o nospace
      # Keys below the first level are many: they are offered once their table is there.
      if [[ $current == *[.[]* ]]; then word='@DEEP@'; else word='@KEYS@'; fi
      mapfile -t COMPREPLY < <(compgen -W "$word" -- "$current") ;;
  esac
}
complete -F _meshwright meshwright
)SH";

constexpr const char* zsh_script = R"SH(#compdef meshwright
# Completion of meshwright for zsh: source <(meshwright completion zsh), or as _meshwright in fpath
_meshwright_table() {
  kind=none choices=()
  case "$1" in
@TABLE@  esac
}

_meshwright() {
  local at= kind word index current=${words[CURRENT]} before=${words[CURRENT - 1]} option=
  local -a choices
  for ((index = 2; index < CURRENT; ++index)); do
    word=${words[index]}
    [[ $word != -- ]] || { _files && return; }
    case "$at/$word" in
      @PATHS@) at=$at/$word ;;
    esac
  done
  if [[ $current == --*=* ]]; then
    option=${current%%=*} && compset -P '*='
  else
    option=$before
  fi
  _meshwright_table "value $at $option"
  if [[ $kind == none ]]; then
    if [[ $current == -* ]]; then
      _meshwright_table "options $at" && _describe -o option choices && return
    else
      _meshwright_table "commands $at"
      ((${#choices})) && { _describe command choices && return; }
      _meshwright_table "positional $at"
    fi
  fi
  case $kind in
    words) compadd -a choices ;;
    files) _files ;;
    folders) _files -/ ;;
    either) compadd -a choices; _files ;;
    keys)
      # Keys below the first level are many: they are offered once their table is there.
      if [[ $current == *[.[]* ]]; then choices=(@DEEP@); else choices=(@KEYS@); fi
      compadd -S '' -a choices ;;
  esac
}

# As a file of fpath it is the function itself, as a script that is sourced it says whose it is.
if [[ ${funcstack[1]} == _meshwright ]]; then
  _meshwright "$@"
else
  compdef _meshwright meshwright
fi
)SH";

std::string fill_in(std::string text, const std::string& name, const std::string& by) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
    text.replace(at, name.size(), by);
  return text;
}

std::string bare_words(const std::vector<Described>& all) {
  std::string text;
  for (const Described& one : all) text += (text.empty() ? "" : " ") + one.word;
  return text;
}

// "'optimizer.lr=' 'plan[1].ways='": brackets would be patterns.
std::string quoted_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + quoted(word);
  return text;
}

std::string described_words(const std::vector<Described>& all) {
  std::string text;
  for (const Described& one : all)
    text += (text.empty() ? "" : " ") + quoted(one.word + ":" + one.about);
  return text;
}

std::string bash_or_zsh(const char* script, const std::vector<Node>& nodes, const Words& words) {
  const std::string text = fill_in(script, "@TABLE@", case_table(nodes, words));
  return fill_in(text, "@PATHS@", paths_of(nodes));
}

std::string bash(const std::vector<Node>& nodes, const Names& names) {
  const std::string text = bash_or_zsh(bash_script, nodes, bare_words);
  return fill_in(fill_in(text, "@KEYS@", join(names.keys, " ")), "@DEEP@",
                 join(names.deep_keys, " "));
}

std::string zsh(const std::vector<Node>& nodes, const Names& names) {
  const std::string text = bash_or_zsh(zsh_script, nodes, described_words);
  return fill_in(fill_in(text, "@KEYS@", quoted_words(names.keys)), "@DEEP@",
                 quoted_words(names.deep_keys));
}

// --- fish: a line for each word ---

constexpr const char* fish_script =
    R"SH(# Completion of meshwright for fish: meshwright completion fish | source
function __meshwright_at
    set -l path
    for word in (commandline -opc)[2..-1]
        test "$word" = -- && return 1
        contains -- "$path/$word" @PATHS@ && set path "$path/$word"
    end
    test "$path" = "$argv[1]"
end
function __meshwright_keys
    # Keys below the first level are many: they are offered once their table is there.
    if string match -qr '[.[]' -- (commandline -ct)
        printf '%s\n' @DEEP@
    else
        printf '%s\n' @KEYS@
    end
end
complete -c meshwright -f
complete -c meshwright -F -n 'contains -- -- (commandline -opc)'
)SH";

std::string fish_place(const Place& place) {
  switch (place.kind) {
    case Place::words_alone:
      return fmt::format(" -f -a {}", quoted(join(place.words, " ")));
    case Place::words_or_files:
      return fmt::format(" -F -a {}", quoted(join(place.words, " ")));
    case Place::files:
      return " -F";
    case Place::folders:
      return " -f -a '(__fish_complete_directories)'";
    case Place::keys:
      return " -f -a '(__meshwright_keys)'";
    case Place::nothing:
      break;
  }
  return " -f";
}

std::string fish(const std::vector<Node>& nodes, const Names& names) {
  std::string paths;
  for (const Node& node : nodes)
    if (!node.path.empty()) paths += (paths.empty() ? "" : " ") + node.path;
  std::string text = fill_in(fish_script, "@PATHS@", paths);
  text = fill_in(text, "@KEYS@", quoted_words(names.keys));
  text = fill_in(text, "@DEEP@", quoted_words(names.deep_keys));
  for (const Node& node : nodes) {
    const std::string begin =
        fmt::format("complete -c meshwright -n {}", quoted("__meshwright_at '" + node.path + "'"));
    for (const Described& one : node.commands)
      text += fmt::format("{} -f -a {} -d {}\n", begin, one.word, quoted(one.about));
    if (node.commands.empty() && node.positional.kind != Place::nothing)
      text += begin + fish_place(node.positional) + "\n";
    for (const Described& one : node.options) {
      const bool is_long = one.word.starts_with("--");
      text += fmt::format("{} {} {} -d {}", begin, is_long ? "-l" : "-s",
                          one.word.substr(is_long ? 2 : 1), quoted(one.about));
      for (const ValueOption& option : node.with_value)
        if (std::count(option.names.begin(), option.names.end(), one.word) > 0)
          text += " -r" + fish_place(option.value);
      text += "\n";
    }
  }
  return text;
}

int print_completion(const CompletionArguments& arguments, Output& output) {
  const Names names = all_names(arguments);
  const std::vector<Node> nodes = nodes_of(*arguments.root, names);
  output.document(arguments.shell == "bash"  ? bash(nodes, names)
                  : arguments.shell == "zsh" ? zsh(nodes, names)
                                             : fish(nodes, names));
  return 0;
}

const CommandOf<CompletionArguments> completion_command{
    {"completion", 205, "print a script with which a shell completes this program's command line"},
    [](CLI::App& command, CompletionArguments& a) {
      a.root = command.get_parent();
      command.add_option("SHELL", a.shell, "bash, zsh or fish")
          ->required()
          ->check(CLI::IsMember({"bash", "zsh", "fish"}));
      command.footer(
          "Examples: source <(meshwright completion bash)   # in ~/.bashrc\n"
          "          meshwright completion fish | source     # in ~/.config/fish/config.fish");
    },
    print_completion};

}  // namespace
}  // namespace mw
