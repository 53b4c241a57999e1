// The registry of built-in things and of plugins, which are found on a search path and loaded when
// a script names them: the file of the plugin NAME is NAME.so. Not thread-safe: only the main
// thread uses it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "meshwright/plugin.h"

namespace mw {

inline std::span<const Registration> registrations_of(const PluginDescriptor& plugin) {
  return {plugin.registrations, plugin.count};
}

// A file on the plugin path. If it is broken, `problem` says why and `hint` what to do.
struct PluginFile {
  std::filesystem::path file;
  const PluginDescriptor* descriptor = nullptr;  // null if broken
  std::string code, problem, hint;
  std::string name() const;  // the descriptor's, or the file's without ".so"
};

// A plugin of the source tree that was not built. The build lists such plugins in a file
// left_out.json beside the plugins that it made.
struct LeftOutPlugin {
  std::string name, kind, summary;  // as the plugin would register them
  std::string why, hint;            // "MPI is not installed", and what to do
};

// The registrations of one plugin that named() found for a name.
struct NamedThing {
  const PluginDescriptor* plugin;
  std::vector<const Registration*> registrations;
};

class PluginRegistry : public Catalog {
 public:
  // `folders`: in the order in which they are searched; those that do not exist are skipped.
  explicit PluginRegistry(std::vector<std::filesystem::path> folders);

  const Registration& find(Kind kind, const std::string& name,
                           const std::string& key = "") override;
  std::vector<const Registration*> list(Kind kind) const override;
  std::vector<const Registration*> all(Kind kind) override;

  // Loads a plugin by name; its registrations are then found. Throws Error (options) if there is no
  // such plugin (with the nearest name), if two files claim the name, if the file is broken (with
  // the reason), or if one of its registrations has the kind and the name of another one.
  const PluginDescriptor& plugin(const std::string& name);
  // As plugin(), for a file given by its path (mw.plugin "./x.so").
  const PluginDescriptor& load(const std::filesystem::path& file);
  // All registrations with this name (or with this name in scripts), of any kind. First come
  // built-in ones, or a plugin of this name with all that it registers, which throws as plugin()
  // does; then those of other usable files on the path.
  std::vector<NamedThing> named(const std::string& name);
  // Throws Error (options): nothing has this name. The hint has the nearest name among all
  // registrations and `others`, which are names that no plugin registers.
  [[noreturn]] void refuse(const std::string& name, const std::vector<std::string>& others);
  // Loads every usable file of the path, so that find() sees all their registrations.
  void use_all();
  // Loads all files of the path, and returns them sorted by name, with the broken ones and with the
  // files that were loaded by path.
  std::vector<PluginFile> files();
  // Plugins of the source tree that were not built, unless a file of the path has the same name.
  std::vector<LeftOutPlugin> left_out() const;
  // The names of the plugins on the path, by file name, without loading anything.
  std::vector<std::string> names() const;
  const std::vector<std::filesystem::path>& folders() const { return folders_; }

  // The plugin path: the folders of --plugin-path (`given`), then those of MESHWRIGHT_PLUGIN_PATH
  // (separated by colons), then ../lib/meshwright/plugins beside the program. Throws Error
  // (options) if a folder of --plugin-path does not exist.
  static std::vector<std::filesystem::path> search_path(const std::vector<std::string>& given);

 private:
  std::vector<std::filesystem::path> files_named(const std::string& name) const;
  const PluginFile& load_once(const std::filesystem::path& file);
  // A hint for a plugin that is not on the path, but was built near it; empty: it was not.
  std::string where_built(const std::string& name) const;
  // Throws Error (options) if a file of another name holds the plugin of this name.
  void refuse_misnamed(const std::string& name);
  [[noreturn]] void refuse_unknown(const std::string& name);
  [[noreturn]] void refuse_unknown(Kind kind, const std::string& name, const std::string& key);
  const Registration* known(Kind kind, const std::string& name) const;
  void use(const PluginFile& plugin);
  // As files(), but lists again only if a folder or the set of loaded plugins has changed.
  const std::vector<PluginFile>& listed_files();

  std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, PluginFile> loaded_;  // by canonical path
  std::map<std::string, const PluginFile*> by_name_;    // the plugins in use
  std::vector<const PluginFile*> used_;                 // the plugins in use, in order
  std::vector<PluginFile> listed_;                      // the last result of listed_files()
  // Modification times of the folders, and numbers of plugins, when `listed_` was made.
  std::vector<std::int64_t> listed_at_;
};

// The result of opening a loadable module, which stays open for the life of the process.
struct ModuleVerdict {
  const PluginDescriptor* descriptor = nullptr;  // null: the module is no usable plugin
  std::string code, problem, hint;               // why not (docs/errors.md), and what to do
};

// Opens a module and judges it. Does not throw if the file is at fault. Problems do not name the
// file.
ModuleVerdict open_module(const std::filesystem::path& file);

// Judges the descriptor at `head`; reads each field only once the earlier fields show that it
// exists.
ModuleVerdict judge(const PluginHead* head);

// The names of all kinds, as the option --kind takes them: "strategy, scheduler, …".
std::string kinds_there_are();

// Translates a message of dlopen for users, such as "libfoo.so.1: cannot open shared object
// file: …".
ModuleVerdict translate_load_error(const std::string& message);

// The descriptor of all built-in registrations, named "meshwright". The same object at every call.
const PluginDescriptor& built_in();

}  // namespace mw
