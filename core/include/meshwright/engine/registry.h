// What is registered: built in, and by plugins, which are found on a search path and loaded when
// they are asked for. A plugin's file is called NAME.so, so nothing is loaded that nobody names.
// Not thread-safe: the main thread resolves plans.
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

// A file on the plugin path. Of a broken one, `problem` says why and `hint` what to do.
struct PluginFile {
  std::filesystem::path file;
  const PluginDescriptor* descriptor = nullptr;  // null if broken
  std::string code, problem, hint;
  std::string name() const;  // the descriptor's, or the file's without ".so"
};

// A plugin that comes with the program and that this build was made without. Its build says so in a
// file left_out.json beside its other plugins.
struct LeftOutPlugin {
  std::string name, kind, summary;  // as it would register them
  std::string why, hint;            // "MPI is not installed", and what to do
};

// What of one plugin has a name.
struct NamedThing {
  const PluginDescriptor* plugin;
  std::vector<const Registration*> registrations;
};

class PluginRegistry : public Catalog {
 public:
  // Folders in the order in which they are searched; those that do not exist are passed over.
  explicit PluginRegistry(std::vector<std::filesystem::path> folders);

  const Registration& find(Kind kind, const std::string& name,
                           const std::string& key = "") override;
  std::vector<const Registration*> list(Kind kind) const override;
  std::vector<const Registration*> all(Kind kind) override;

  // A plugin by name; from then on what it registers is found. Throws Error (options) if there is
  // none (with the nearest name), if two files claim the name, if the file is broken (with the
  // reason), or if something of it has the kind and the name of something else.
  const PluginDescriptor& plugin(const std::string& name);
  // The same of one file by path (mw.plugin "./x.so").
  const PluginDescriptor& load(const std::filesystem::path& file);
  // What has this name, of whatever kind: what is built in (or is under it in a script), or a
  // plugin with all that it registers, which throws as plugin() does; then what other usable files
  // of the path register.
  std::vector<NamedThing> named(const std::string& name);
  // Throws Error (options): nothing has this name. Its hint has the nearest name, of all that is
  // registered and of `others`, names that no plugin's file registers.
  [[noreturn]] void refuse(const std::string& name, const std::vector<std::string>& others);
  // What every usable file of the path registers is found from then on.
  void use_all();
  // Loads all files of the path: sorted by name, broken ones among them, and files that were loaded
  // by path.
  std::vector<PluginFile> files();
  // Plugins that ship with the program and that its build was made without, unless a file of the
  // path has the name.
  std::vector<LeftOutPlugin> left_out() const;
  // Names to be had, by file name, without loading anything.
  std::vector<std::string> names() const;
  const std::vector<std::filesystem::path>& folders() const { return folders_; }

  // --plugin-path folders, then MESHWRIGHT_PLUGIN_PATH's (colons between), then
  // ../lib/meshwright/plugins beside the program. A folder of --plugin-path that does not exist
  // throws Error (options).
  static std::vector<std::filesystem::path> search_path(const std::vector<std::string>& given);

 private:
  std::vector<std::filesystem::path> files_named(const std::string& name) const;
  const PluginFile& load_once(const std::filesystem::path& file);
  // The hint for a name that is not on the path but was built near it; empty: it was not.
  std::string where_built(const std::string& name) const;
  // If a file under another name has the plugin of this one: says so rather than deny it.
  void refuse_misnamed(const std::string& name);
  [[noreturn]] void refuse_unknown(const std::string& name);
  [[noreturn]] void refuse_unknown(Kind kind, const std::string& name, const std::string& key);
  const Registration* known(Kind kind, const std::string& name) const;
  void use(const PluginFile& plugin);
  // files(), listed anew only where a folder, or what is loaded or in use, has changed since.
  const std::vector<PluginFile>& listed_files();

  std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, PluginFile> loaded_;  // by canonical path
  std::map<std::string, const PluginFile*> by_name_;    // those in use
  std::vector<const PluginFile*> used_;                 // likewise, in order
  std::vector<PluginFile> listed_;                      // listed_files()
  std::vector<std::int64_t> listed_at_;                 // the folders' times, and the counts, then
};

// What comes of opening a loadable module, which stays open for the life of the process.
struct ModuleVerdict {
  const PluginDescriptor* descriptor = nullptr;  // null: the module is no usable plugin
  std::string code, problem, hint;               // why (docs/errors.md), and what to do
};

// Never throws for what is wrong with the file. Problems do not name the file.
ModuleVerdict open_module(const std::filesystem::path& file);

// Judges the descriptor at `head`, reading no further than what it has judged so far.
ModuleVerdict judge(const PluginHead* head);

// "strategy, scheduler, …", as --kind has them.
std::string kinds_there_are();

// "libfoo.so.1: cannot open shared object file: …" and its like, for people. `message` is dlopen's.
ModuleVerdict translate_load_error(const std::string& message);

// Its name is "meshwright". The same object at every call.
const PluginDescriptor& built_in();

}  // namespace mw
