// Finds plugins on a search path and loads the ones that are asked for. A plugin's file is called
// NAME.so, so nothing is loaded that nobody names. Not thread-safe: the main thread resolves plans.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "meshwright/plugin.h"

namespace mw {

// A file on the plugin path. Of a broken one, `problem` says why and `hint` what to do.
struct PluginFile {
  std::filesystem::path file;
  const PluginDescriptor* descriptor = nullptr;  // null if broken
  std::string code, problem, hint;
  std::string name() const;  // the descriptor's, or the file's without ".so"
};

class PluginRegistry : public PluginCatalog {
 public:
  // Folders in the order in which they are searched; those that do not exist are passed over.
  explicit PluginRegistry(std::vector<std::filesystem::path> folders);

  const PluginDescriptor& find(const std::string& name) override;
  // Loads one file by path (mw.plugin "./x.so"); find() of its name yields it from then on. Throws
  // Error (options) if it is broken, or if another file already gave a plugin of that name.
  const PluginDescriptor& load(const std::filesystem::path& file);
  // Loads all files of the path: sorted by name, broken ones among them, and files that were loaded
  // by path.
  std::vector<PluginFile> list();
  std::vector<std::string> names() const override;  // by file name
  const std::vector<std::filesystem::path>& folders() const { return folders_; }

  // --plugin-path folders, then MESHWRIGHT_PLUGIN_PATH's (colons between), then
  // ../lib/meshwright/plugins beside the program. A folder of --plugin-path that does not exist
  // throws Error (options).
  static std::vector<std::filesystem::path> search_path(const std::vector<std::string>& given);

 private:
  std::vector<std::filesystem::path> files_named(const std::string& name) const;
  const PluginFile& load_once(const std::filesystem::path& file);
  [[noreturn]] void refuse_unknown(const std::string& name);

  std::vector<std::filesystem::path> folders_;
  std::map<std::filesystem::path, PluginFile> loaded_;  // by canonical path
  std::map<std::string, const PluginFile*> by_name_;    // those in use
};

}  // namespace mw
