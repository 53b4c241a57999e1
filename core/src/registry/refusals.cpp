// Throws the registry's errors for names that nothing has, with similar names and places to look
// in.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <system_error>

#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

std::string with_article(const std::string& noun) {
  return (std::string_view("aeiou").find(noun[0]) != std::string_view::npos ? "an " : "a ") + noun;
}

// The plural of a noun: "scheduler" -> "schedulers", "recompute policy" -> "recompute policies".
std::string several(std::string noun) {
  if (noun.back() != 'y') return noun + "s";
  noun.pop_back();
  return noun + "ies";
}

}  // namespace

// Looks in build and <name>/build of the path's folders and of the working folder. Returns a hint,
// or "".
std::string PluginRegistry::where_built(const std::string& name) const {
  std::vector<fs::path> around = folders_;
  around.emplace_back(".");
  std::string hint;
  for (const fs::path& folder : around) {
    for (const fs::path& built : {folder / "build", folder / name / "build"}) {
      std::error_code error;
      if (fs::exists(built / (name + ".so"), error))
        hint = fmt::format("it was built in {0}: --plugin-path {0}",
                           built.lexically_normal().string());
    }
  }
  return hint;
}

void PluginRegistry::refuse_misnamed(const std::string& name) {
  for (const PluginFile& plugin : files()) {
    if (plugin.descriptor != nullptr && plugin.descriptor->name == name) {
      throw Error(Stage::options, "plugin.misnamed", "",
                  fmt::format("plugin {} is in a file of another name: {}", quote(name),
                              plugin.file.string()),
                  fmt::format("rename the file to {}.so", name));
    }
  }
}

void PluginRegistry::refuse_unknown(const std::string& name) {
  refuse_misnamed(name);
  const std::vector<std::string> known = names();
  std::vector<std::string> searched;
  for (const fs::path& folder : folders_) searched.push_back(folder.lexically_normal().string());
  const std::string near = did_you_mean(name, known);
  std::string hint = fmt::format("{}{}name the folder of others with --plugin-path",
                                 near.empty() ? "" : near + " ",
                                 known.empty() ? "" : "plugins: " + join(known) + "; ");
  if (const std::string built = where_built(name); !built.empty()) hint = built;
  throw Error(Stage::options, "plugin.unknown", "",
              fmt::format("there is no plugin {} in {}", quote(name), join(searched, ":")), hint);
}

void PluginRegistry::refuse(const std::string& name, const std::vector<std::string>& others) {
  refuse_misnamed(name);
  std::string hint = where_built(name);
  if (hint.empty()) {
    std::vector<std::string> known = others;
    const auto add = [&](const PluginDescriptor& plugin) {
      for (const Registration& one : registrations_of(plugin)) known.emplace_back(one.name);
    };
    add(built_in());
    for (const PluginFile& file : files()) {
      if (!file.problem.empty()) continue;
      known.push_back(file.name());
      add(*file.descriptor);
    }
    const std::string near = did_you_mean(name, known);
    hint = near + (near.empty() ? "" : " ") +
           "meshwright plugins list shows all; name the folder of others with --plugin-path";
  }
  throw Error(Stage::options, "plugin.unknown", "",
              fmt::format("nothing that can be composed is named {}", quote(name)), hint);
}

void PluginRegistry::refuse_unknown(Kind kind, const std::string& name, const std::string& key) {
  const auto say = [&](const char* code, std::string message, std::string hint) {
    return Error(Stage::options, code, key, std::move(message), std::move(hint));
  };
  for (std::uint32_t other = 1; other <= static_cast<std::uint32_t>(last_kind); ++other) {
    if (known(static_cast<Kind>(other), name) == nullptr) continue;
    const std::string others = names_of(*this, kind);
    throw say("option.value",
              fmt::format("{} is {}, not {}", name, with_article(noun_of(static_cast<Kind>(other))),
                          with_article(noun_of(kind))),
              fmt::format("{}{}", several(noun_of(kind)),
                          others.empty() ? " come from plugins: mw.plugins(…), --plugin-path"
                                         : ": " + others));
  }
  for (const LeftOutPlugin& one : left_out()) {
    if (one.name != name || one.kind != name_of(kind)) continue;
    throw Error(Stage::environment, "plugin.left_out", key,
                fmt::format("this build has no {} {}: {}", noun_of(kind), quote(name), one.why),
                one.hint);
  }
  // The plugin of that name has been looked into, and registers other names.
  if (const auto used = by_name_.find(name); used != by_name_.end()) {
    const auto all = registrations_of(*used->second->descriptor);
    const bool some = std::any_of(all.begin(), all.end(),
                                  [&](const Registration& one) { return one.kind == kind; });
    std::vector<std::string> registered;
    for (const Registration& one : all) {
      if (!some || one.kind == kind)
        registered.push_back(fmt::format("the {} {}", noun_of(one.kind), quote(one.name)));
    }
    throw Error(Stage::options, "plugin.lacks", key,
                fmt::format("{} registers {}, and no {} {}", used->second->file.string(),
                            join(registered), noun_of(kind), quote(name)),
                fmt::format("write a name that it registers, or register the {} as {} in its "
                            "MESHWRIGHT_PLUGIN(…)",
                            noun_of(kind), quote(name)));
  }
  // A plugin that the script has not named may register it.
  for (const PluginFile& plugin : files()) {
    if (plugin.descriptor == nullptr || !plugin.problem.empty()) continue;
    for (const Registration& one : registrations_of(*plugin.descriptor)) {
      if (one.kind != kind || one.name != name) continue;
      throw say(
          "option.choice",
          fmt::format("the {} {} is in the plugin {}", noun_of(kind), quote(name), plugin.name()),
          fmt::format("write mw.plugins({}) before", quote(plugin.name())));
    }
  }
  std::vector<std::string> names;
  for (const Registration* one : list(kind)) names.emplace_back(one->name);
  // A registration that has the name of a plugin file is found by that name.
  for (const Registration* one : all(kind)) {
    const bool listed = std::find(names.begin(), names.end(), one->name) != names.end();
    if (!listed && !files_named(one->name).empty()) names.emplace_back(one->name);
  }
  const std::string near = did_you_mean(name, names);
  throw say("option.choice", fmt::format("there is no {} {}", noun_of(kind), quote(name)),
            fmt::format("{}{}: {}; others come from plugins: mw.plugins(…), --plugin-path",
                        near.empty() ? "" : near + " ", several(noun_of(kind)), join(names)));
}

}  // namespace mw
