// `meshwright plugins new NAME --kind KIND`: writes the folder of a plugin that builds and passes
// its test at once, from the templates that lie beside the program.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "app/command.h"
#include "common/files.h"
#include "common/process.h"
#include "lua/names.h"
#include "lua/script.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t longest_name = 60;

// "my_tp" -> "MyTp".
std::string camel(const std::string& name) {
  std::string text;
  bool first = true;
  for (const char c : name) {
    if (c != '_')
      text += first ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    first = c == '_';
  }
  return text;
}

// A name must do as a variable of scripts, as a file's name and as part of a class's name.
void check_new_name(const std::string& name) {
  const auto may = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (!name.empty() && name.size() <= longest_name && name[0] >= 'a' && name[0] <= 'z' &&
      std::all_of(name.begin(), name.end(), may) && is_lua_name(name) && name != "mw")
    return;
  throw Error(
      Stage::script, "kit.name", "",
      fmt::format("{} cannot be the name of a plugin: scripts have it as a variable", quote(name)),
      fmt::format("use a lower-case letter, then letters, digits and \"_\", {} at most",
                  longest_name));
}

void check_not_taken(const std::string& name, PluginRegistry& plugins) {
  const std::vector<std::string> there = plugins.names();
  bool taken = std::find(there.begin(), there.end(), name) != there.end();
  for (auto kind = Kind::strategy; kind <= last_kind;
       kind = static_cast<Kind>(static_cast<std::uint32_t>(kind) + 1)) {
    for (const Registration* one : plugins.all(kind)) taken = taken || one->name == name;
  }
  if (!taken) return;
  throw Error(Stage::script, "plugin.taken", "", fmt::format("{} exists already", quote(name)),
              "choose another name; meshwright plugins list has those that are taken");
}

// The kinds of which there are templates; those in Lua have a folder KIND-lua.
std::vector<std::string> template_kinds(const fs::path& templates, bool lua) {
  std::vector<std::string> kinds;
  std::error_code error;
  for (fs::directory_iterator entry(templates, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with("common") || name.ends_with("-lua") != lua) continue;
    kinds.push_back(lua ? name.substr(0, name.size() - 4) : name);
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

void check_new_kind(const std::string& kind, const fs::path& templates, bool lua) {
  const std::vector<std::string> kinds = template_kinds(templates, lua);
  if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return;
  if (kinds.empty()) {
    throw Error(Stage::environment, "kit.templates", "",
                fmt::format("there are no templates in {}", templates.string()),
                "build or install again");
  }
  const std::vector<std::string> all = template_kinds(templates, false);
  if (lua && std::find(all.begin(), all.end(), kind) != all.end()) {
    throw Error(
        Stage::script, "kit.kind", "",
        fmt::format("a script cannot bring a thing of the kind {}", quote(kind)),
        fmt::format("leave --lua out: it is written in C++; in Lua there are {}", join(kinds)));
  }
  const std::string near = did_you_mean(kind, kinds);
  throw Error(Stage::script, "kit.kind", "", fmt::format("there is no kind {}", quote(kind)),
              near.empty() ? "kinds: " + join(kinds) : near);
}

std::string filled(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : values) {
    const std::string mark = "@" + name + "@";
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size())
      text.replace(at, mark.size(), value);
  }
  return text;
}

// Writes the files of a folder of templates, with the values filled in, and adds their names to
// `written`.
void copy_templates(const fs::path& from, const fs::path& to,
                    const std::map<std::string, std::string>& values,
                    std::set<std::string>& written) {
  for (const auto& entry : fs::directory_iterator(from)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("NAME")) name.replace(0, 4, values.at("NAME"));
    if (name == "gitignore") name = ".gitignore";
    const std::optional<std::string> text = whole_file(entry.path());
    if (!text) {
      throw Error(Stage::environment, "file.read", "",
                  fmt::format("{}: cannot read this template", entry.path().string()));
    }
    if (const int reason = replace_whole(to / name, filled(*text, values)); reason != 0)
      throw not_written(to / name, reason);
    if (name.ends_with(".sh")) {
      fs::permissions(to / name,
                      fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add);
    }
    if (name[0] != '.') written.insert(name);
  }
}

// What a user does next, from this folder: a command, and what it is for.
struct NextStep {
  std::string command, purpose;
};

// How people start this program: by the launcher of the folder that it was built in, or by itself.
std::string way_to_start() {
  const fs::path program = program_path(), root = program.parent_path().parent_path().parent_path();
  std::error_code error;
  const bool cloned = fs::exists(root / "meshwright", error) && fs::exists(root / "core", error);
  const fs::path way = cloned ? root / "meshwright" : program;
  const fs::path here = fs::current_path(error);
  if (way.parent_path() == here) return "./meshwright";
  return shell_word(way.string());
}

// The command that uses a new plugin of the kind, and what it does.
NextStep use_of(const std::string& kind, const std::string& name, bool lua) {
  const std::string way = way_to_start(),
                    path = fmt::format("--plugin-path {}{}", name, lua ? "" : "/build");
  if (kind == "cluster")
    return {fmt::format("{} plan SCRIPT --cluster {} {}", way, name, path),
            "prices a script's plans for it"};
  if (lua) return {fmt::format("{} run {}/{}.lua", way, name, name), "trains with it"};
  if (kind == "op")
    return {fmt::format("{} run {}/{}.lua {}", way, name, name, path), "trains a model with it"};
  if (kind == "communicator")
    return {fmt::format("mpirun -n 2 {} run SCRIPT --communicator {} {}", way, name, path),
            "trains over it, as any script says"};
  return {fmt::format("{} run SCRIPT {}", way, path),
          fmt::format("runs a script that has the lines of {}/README.md", name)};
}

// A plugin in C++ is built with the CMake package of an installed program: where this one is not
// installed, the first step installs it.
std::vector<NextStep> next_steps(const std::string& kind, const std::string& name, bool lua,
                                 const fs::path& prefix) {
  std::vector<NextStep> steps;
  std::string variable;
  std::error_code error;
  if (!lua && !fs::exists(prefix / "lib/cmake/Meshwright/MeshwrightConfig.cmake", error)) {
    variable = "MESHWRIGHT_PREFIX=~/meshwright-kit ";
    steps.push_back(
        {fmt::format("cmake --install {} --prefix ~/meshwright-kit", shell_word(prefix.string())),
         "installs what plugins are built with, once, into a folder of your choice"});
  }
  steps.push_back(
      {fmt::format("{}{}/test.sh", variable, name),
       lua ? "tests it" : fmt::format("builds {}/build/{}.so and tests it", name, name)});
  steps.push_back(use_of(kind, name, lua));
  return steps;
}

struct NewPluginArguments : Arguments {
  std::string name, kind;
  bool lua = false;  // a script, not C++
};

// Writes the new plugin's folder into the working directory. Throws Error (script) for a name or a
// kind that will not do, or a folder that exists.
int new_plugin(const NewPluginArguments& arguments, Output& output) {
  PluginRegistry plugins = registry_of(arguments);
  const std::string& name = arguments.name;
  const fs::path share = lua_library().parent_path(), templates = share / "templates";
  check_new_name(name);
  check_new_kind(arguments.kind, templates, arguments.lua);
  check_not_taken(name, plugins);
  const fs::path folder = name;
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error))) {
    throw Error(Stage::script, "kit.folder", "", fmt::format("{} exists already", quote(name)),
                "choose another name, or go to another folder");
  }
  if (!fs::create_directory(folder, error)) {
    throw Error(Stage::script, "kit.folder", "",
                fmt::format("cannot make the folder {}: {}", quote(name), error.message()),
                "go to a folder that you may write to");
  }
  const std::map<std::string, std::string> values = {
      {"NAME", name},
      {"CLASS", camel(name) + camel(arguments.kind)},
      {"PREFIX", share.parent_path().parent_path().string()}};
  const std::string end = arguments.lua ? "-lua" : "";
  std::set<std::string> written;  // names; a kind's own file replaces the common one
  for (const std::string& from : {"common" + end, arguments.kind + end})
    copy_templates(templates / from, folder, values, written);
  const std::vector<std::string> files(written.begin(), written.end());
  Json next = Json::array();
  std::string text = fmt::format("wrote {}/: {}\nnext:\n", name, join(files));
  for (const NextStep& step :
       next_steps(arguments.kind, name, arguments.lua, share.parent_path().parent_path())) {
    next.push_back(step.command);
    text += fmt::format("  {}\n      {}\n", step.command, step.purpose);
  }
  output.result({{"kind", "new"},
                 {"name", name},
                 {"of", arguments.kind},
                 {"files", files},
                 {"next", std::move(next)}});
  if (!output.json()) output.text(text);
  return 0;
}

const CommandOf<NewPluginArguments> plugins_new_command{
    {"plugins new", 93, "write the folder of a plugin that builds and passes its test at once"},
    [](CLI::App& command, NewPluginArguments& a) {
      command.add_option("NAME", a.name, "the plugin's name, and the folder's")->required();
      command.add_option("--kind", a.kind, kinds_there_are())->required()->type_name("KIND");
      command.add_flag("--lua", a.lua, "a script instead of C++");
      command.footer("Example: meshwright plugins new my_tp --kind strategy");
      add_common(command, a);
    },
    new_plugin};

}  // namespace
}  // namespace mw
