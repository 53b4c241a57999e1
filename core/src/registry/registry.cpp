// Finds what is registered by kind and name, and loads plugins of the search path, each once.
#include "meshwright/engine/registry.h"
#include "meshwright/engine/bounds.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "meshwright/engine/files.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/plugin_faults.h"
#include "meshwright/engine/text.h"
#include "meshwright/json.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

fs::path resolved(const fs::path& file) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(file, error);
  return error ? fs::absolute(file) : path;
}

// The plugin files of a folder, by canonical path: a file that two folders reach is one plugin.
std::vector<fs::path> modules_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".so") files.push_back(resolved(entry->path()));
  }
  return files;
}

// The problem, if the plugin registers something under a kind and a name that are taken: by what is
// built in, by the plugin itself, or by one of `others`.
std::optional<Problem> taken_from(const PluginFile& plugin,
                                  const std::vector<const PluginFile*>& others) {
  std::optional<Problem> problem;
  const auto compare = [&](const Registration& own, const Registration& one,
                           const std::string& where) {
    if (&own == &one || own.kind != one.kind || std::strcmp(own.name, one.name) != 0) return;
    problem = {Stage::options, "plugin.taken", "",
               fmt::format("the {} {} of {} has its name from {}", noun_of(own.kind),
                           quote(own.name), plugin.file.string(), where),
               "give it another name, or leave one of the two out"};
  };
  for (const Registration& own : registrations_of(*plugin.descriptor)) {
    for (const Registration& one : registrations_of(built_in())) compare(own, one, "the program");
    for (const Registration& one : registrations_of(*plugin.descriptor))
      compare(own, one, "itself");
    for (const PluginFile* other : others) {
      for (const Registration& one : registrations_of(*other->descriptor))
        compare(own, one, other->file.string());
    }
  }
  return problem;
}

// Refuses a file that others may write, or whose folder they may write: its code runs in this
// process. In a sticky folder, where users may remove only files of their own, the file's owner
// counts.
ModuleVerdict writable_by_others(const fs::path& file) {
  struct stat own {
  }, folder{};
  if (::stat(file.c_str(), &own) != 0 || ::stat(file.parent_path().c_str(), &folder) != 0)
    return {};
  const bool trusted_owner = own.st_uid == ::geteuid() || own.st_uid == 0;
  const auto judge_one = [&](const fs::path& path, const struct stat& info) -> ModuleVerdict {
    const bool kept = S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0 && trusted_owner;
    const auto refuse = [&](const std::string& who, const char* letter) {
      ModuleVerdict verdict;
      verdict.code = "plugin.writable";
      verdict.problem =
          fmt::format("{} may write {} (mode {:04o})", who, path.string(), info.st_mode & 07777U);
      verdict.hint =
          fmt::format("look at the files there first, then: chmod {}-w {}", letter, path.string());
      return verdict;
    };
    if ((info.st_mode & S_IWOTH) != 0 && !kept) return refuse("anybody on this machine", "o");
    if ((info.st_mode & S_IWGRP) != 0 && !kept && info.st_gid != ::getegid() &&
        ::group_member(info.st_gid) == 0)
      return refuse(fmt::format("the group {}, which you are not in,", info.st_gid), "g");
    return {};
  };
  ModuleVerdict verdict = judge_one(file, own);
  return verdict.code.empty() ? judge_one(file.parent_path(), folder) : verdict;
}

// Says why a file may not be opened as a plugin; a verdict without a code: it may.
ModuleVerdict judge_file(const fs::path& file) {
  try {
    check_may_read(file);
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    return {nullptr, problem.code, problem.message, problem.hint};
  }
  return writable_by_others(file);
}

Error broken(const PluginFile& plugin) {
  return Error(Stage::options, plugin.code, "",
               fmt::format("plugin {}: {} is {}", quote(plugin.name()), plugin.file.string(),
                           "unusable: " + plugin.problem),
               plugin.hint);
}

}  // namespace

std::string PluginFile::name() const {
  return descriptor != nullptr ? descriptor->name : file.stem().string();
}

PluginRegistry::PluginRegistry(std::vector<fs::path> folders) : folders_(std::move(folders)) {}

std::vector<fs::path> PluginRegistry::search_path(const std::vector<std::string>& given) {
  std::vector<fs::path> folders;
  const auto add = [&](const std::string& folder, const char* named_by) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
      throw Error(Problem{Stage::options, "plugin.path", "", "there is no such folder", "",
                          fmt::format("{} {}", named_by, folder)});
    }
    folders.emplace_back(folder);
  };
  for (const std::string& folder : given) add(folder, "--plugin-path");
  if (const char* path = std::getenv("MESHWRIGHT_PLUGIN_PATH")) {
    std::stringstream list(path);
    for (std::string folder; std::getline(list, folder, ':');) {
      if (!folder.empty()) add(folder, "MESHWRIGHT_PLUGIN_PATH");
    }
  }
  const fs::path program = program_path();
  if (!program.empty())
    folders.push_back(program.parent_path().parent_path() / "lib/meshwright/plugins");
  return folders;
}

const PluginFile& PluginRegistry::load_once(const fs::path& file) {
  const fs::path path = resolved(file);
  const auto found = loaded_.find(path);
  if (found != loaded_.end()) return found->second;
  PluginFile plugin;
  plugin.file = path;
  ModuleVerdict verdict = judge_file(path);
  if (verdict.code.empty()) verdict = open_module(path);
  plugin.descriptor = verdict.descriptor;
  plugin.code = std::move(verdict.code);
  plugin.problem = std::move(verdict.problem);
  plugin.hint = std::move(verdict.hint);
  return loaded_.emplace(path, std::move(plugin)).first->second;
}

std::vector<fs::path> PluginRegistry::files_named(const std::string& name) const {
  std::vector<fs::path> files;
  for (const fs::path& folder : folders_) {
    const fs::path file = folder / (name + ".so");
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    const fs::path path = resolved(file);
    if (std::find(files.begin(), files.end(), path) == files.end()) files.push_back(path);
  }
  return files;
}

std::vector<LeftOutPlugin> PluginRegistry::left_out() const {
  std::vector<LeftOutPlugin> all;
  for (const fs::path& folder : folders_) {
    std::ifstream file(folder / "left_out.json");
    const Json list = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array()) continue;
    for (const Json& one : list) {
      const auto text = [&](const char* key) {
        const auto found = one.find(key);
        return found != one.end() && found->is_string() ? found->get<std::string>() : "";
      };
      if (!one.is_object() || text("name").empty()) continue;
      if (files_named(text("name")).empty())
        all.push_back({text("name"), text("kind"), text("summary"), text("why"), text("hint")});
    }
  }
  return all;
}

std::vector<std::string> PluginRegistry::names() const {
  std::set<std::string> names;
  for (const fs::path& folder : folders_) {
    for (const fs::path& file : modules_in(folder)) names.insert(file.stem().string());
  }
  for (const auto& [name, plugin] : by_name_) names.insert(name);
  return {names.begin(), names.end()};
}

std::vector<NamedThing> PluginRegistry::named(const std::string& name) {
  std::vector<NamedThing> found;
  const auto of = [&](const PluginDescriptor& plugin, const auto& takes) {
    NamedThing some{&plugin, {}};
    for (const Registration& one : registrations_of(plugin)) {
      if (takes(one)) some.registrations.push_back(&one);
    }
    if (!some.registrations.empty()) found.push_back(std::move(some));
  };
  of(built_in(), [&](const Registration& one) {
    return name == one.name || name == constructor_of(one.kind, one.name);
  });
  const bool whole = found.empty() && (by_name_.contains(name) || !files_named(name).empty());
  if (whole) of(plugin(name), [](const Registration&) { return true; });
  for (const PluginFile& file : files()) {
    if (!file.problem.empty() || (whole && file.name() == name)) continue;
    of(*file.descriptor, [&](const Registration& one) { return name == one.name; });
  }
  return found;
}

const Registration* PluginRegistry::known(Kind kind, const std::string& name) const {
  for (const Registration* one : list(kind)) {
    if (one->name == name) return one;
  }
  return nullptr;
}

const Registration& PluginRegistry::find(Kind kind, const std::string& name,
                                         const std::string& key) {
  if (const Registration* one = known(kind, name)) return *one;
  const bool file = !name.empty() && name.find('/') == std::string::npos;
  if (kind == Kind::strategy || (file && !by_name_.contains(name) && !files_named(name).empty()))
    plugin(name);
  if (const Registration* one = known(kind, name)) return *one;
  refuse_unknown(kind, name, key);
}

std::vector<const Registration*> PluginRegistry::list(Kind kind) const {
  std::vector<const Registration*> all;
  const auto add = [&](const PluginDescriptor& plugin) {
    for (const Registration& one : registrations_of(plugin)) {
      if (one.kind == kind) all.push_back(&one);
    }
  };
  add(built_in());
  for (const PluginFile* plugin : used_) add(*plugin->descriptor);
  return all;
}

std::vector<const Registration*> PluginRegistry::all(Kind kind) {
  std::vector<const Registration*> found = list(kind);
  for (const PluginFile& plugin : listed_files()) {
    // `plugins list` tells of other problems, such as a file of another build
    if (plugin.code == "plugin.fault")
      keep_plugin_fault(plugin.name(), "",
                        fmt::format("the plugin {}, {}: {}", quote(plugin.name()),
                                    plugin.file.string(), plugin.problem));
    if (plugin.descriptor == nullptr || !plugin.problem.empty()) continue;
    for (const Registration& one : registrations_of(*plugin.descriptor)) {
      if (one.kind == kind && std::find(found.begin(), found.end(), &one) == found.end())
        found.push_back(&one);
    }
  }
  return found;
}

void PluginRegistry::use(const PluginFile& plugin) {
  if (const auto taken = taken_from(plugin, used_)) throw Error(*taken);
  by_name_[plugin.descriptor->name] = &plugin;
  used_.push_back(&plugin);
}

const PluginDescriptor& PluginRegistry::plugin(const std::string& name) {
  const auto used = by_name_.find(name);
  if (used != by_name_.end()) return *used->second->descriptor;
  if (name.empty() || name.find('/') != std::string::npos) {
    throw Error(Stage::options, "plugin.unknown", "",
                fmt::format("{} is not the name of a plugin", quote(name)),
                "a plugin file is loaded with mw.plugin \"path/to/name.so\"");
  }
  const std::vector<fs::path> files = files_named(name);
  if (files.empty()) refuse_unknown(name);
  if (files.size() > 1) {
    throw Error(Stage::options, "plugin.twice", "",
                fmt::format("two plugins are named {}: {} and {}", quote(name), files[0].string(),
                            files[1].string()),
                "remove one, or take its folder off the plugin path");
  }
  const PluginFile& plugin = load_once(files[0]);
  if (plugin.descriptor == nullptr) throw broken(plugin);
  if (plugin.descriptor->name != name) {
    throw Error(Stage::options, "plugin.misnamed", "",
                fmt::format("{} holds the plugin {}, not {}", plugin.file.string(),
                            quote(plugin.descriptor->name), quote(name)),
                fmt::format("rename the file to {}.so", plugin.descriptor->name));
  }
  use(plugin);
  return *plugin.descriptor;
}

const PluginDescriptor& PluginRegistry::load(const fs::path& file) {
  const PluginFile& plugin = load_once(file);
  if (plugin.descriptor == nullptr) {
    throw Error(Stage::options, plugin.code, "",
                fmt::format("{}: {}", file.string(), plugin.problem), plugin.hint);
  }
  const auto used = by_name_.find(plugin.descriptor->name);
  if (used != by_name_.end() && used->second != &plugin) {
    throw Error(Stage::options, "plugin.twice", "",
                fmt::format("two plugins are named {}: {} and {}", quote(plugin.descriptor->name),
                            used->second->file.string(), plugin.file.string()),
                "use one of them in a script");
  }
  if (used == by_name_.end()) use(plugin);
  return *plugin.descriptor;
}

void PluginRegistry::use_all() {
  for (const PluginFile& file : files()) {
    if (file.descriptor != nullptr && file.problem.empty()) load(file.file);
  }
}

const std::vector<PluginFile>& PluginRegistry::listed_files() {
  const auto state = [this] {
    std::vector<std::int64_t> now;
    for (const fs::path& folder : folders_) {
      std::error_code error;
      const auto time = fs::last_write_time(folder, error);
      now.push_back(error ? -1 : time.time_since_epoch().count());
    }
    now.push_back(static_cast<std::int64_t>(loaded_.size()));
    now.push_back(static_cast<std::int64_t>(used_.size()));
    return now;
  };
  if (listed_at_.empty() || listed_at_ != state()) {
    listed_ = files();
    listed_at_ = state();  // files() has loaded what it lists
  }
  return listed_;
}

std::vector<PluginFile> PluginRegistry::files() {
  std::set<fs::path> files;
  for (const fs::path& folder : folders_) {
    for (const fs::path& file : modules_in(folder)) files.insert(file);
  }
  for (const auto& [path, plugin] : loaded_) files.insert(path);

  std::vector<PluginFile> all;
  for (const fs::path& file : files) {
    PluginFile plugin = load_once(file);
    const fs::path expected = fmt::format("{}.so", plugin.name());
    const auto used = by_name_.find(plugin.name());
    const bool by_path = used != by_name_.end() && used->second->file == plugin.file;
    if (plugin.descriptor != nullptr && !by_path && file.filename() != expected) {
      plugin.code = "plugin.misnamed";
      plugin.problem = fmt::format("its name is {} but the file is not {}", quote(plugin.name()),
                                   expected.string());
      plugin.hint = "rename the file";
    }
    all.push_back(std::move(plugin));
  }
  for (PluginFile& plugin : all) {
    if (plugin.descriptor == nullptr || by_name_.contains(plugin.name())) continue;
    std::vector<const PluginFile*> others;
    for (const PluginFile& other : all) {
      if (other.descriptor != nullptr && other.file != plugin.file && other.name() != plugin.name())
        others.push_back(&other);
    }
    if (const auto taken = taken_from(plugin, others); taken && plugin.problem.empty()) {
      plugin.code = taken->code;
      plugin.problem = taken->message;
      plugin.hint = taken->hint;
    }
  }
  // Copies of one name exclude each other unless a script has chosen one by path.
  for (PluginFile& plugin : all) {
    for (const PluginFile& other : all) {
      if (plugin.problem.empty() && other.descriptor != nullptr && plugin.file != other.file &&
          plugin.name() == other.name() && !by_name_.contains(plugin.name())) {
        plugin.code = "plugin.twice";
        plugin.problem = fmt::format("{} has the same name", other.file.string());
        plugin.hint = "remove one, or take its folder off the plugin path";
      }
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const PluginFile& a, const PluginFile& b) { return a.name() < b.name(); });
  return all;
}

}  // namespace mw
