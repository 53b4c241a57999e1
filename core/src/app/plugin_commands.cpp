// `meshwright plugins list` and `plugins show NAME`: what can be composed, and the options of
// one form.
#include <fmt/format.h>

#include "app/commands.h"
#include "app/option_text.h"
#include "base/text.h"

namespace mw {

int list_plugins(PluginRegistry& plugins, Output& output) {
  TextTable table({"name", "version", "what it does", "file"});
  std::string broken;
  for (const PluginFile& plugin : plugins.list()) {
    Json line = {{"kind", "plugin"}, {"name", plugin.name()}};
    line["version"] = plugin.descriptor == nullptr ? Json() : Json(plugin.descriptor->version);
    line["summary"] = plugin.descriptor == nullptr ? Json() : Json(plugin.descriptor->summary);
    line["file"] = plugin.file.string();
    line["status"] = plugin.problem.empty() ? "ok" : "broken";
    if (plugin.problem.empty()) {
      table.add({plugin.name(), plugin.descriptor->version, plugin.descriptor->summary,
                 plugin.file.string()});
    } else {
      line["code"] = plugin.code;
      line["reason"] = plugin.problem;
      line["hint"] = plugin.hint;
      broken += fmt::format("  {}: {}\n", plugin.file.string(), plugin.problem);
      if (!plugin.hint.empty()) broken += fmt::format("    {}\n", plugin.hint);
    }
    output.result(line);
  }
  if (output.json()) return 0;
  std::string text = table.empty() ? "no plugins\n" : table.text();
  if (!broken.empty()) text += "\nbroken:\n" + broken;
  if (table.empty()) {
    text += "searched:\n";
    for (const auto& folder : plugins.folders()) text += fmt::format("  {}\n", folder.string());
  }
  output.text(text);
  return 0;
}

int show_plugin(PluginRegistry& plugins, const std::string& name, Output& output) {
  const bool is_file = name.find('/') != std::string::npos || name.ends_with(".so");
  const PluginDescriptor& plugin = is_file ? plugins.load(name) : plugins.find(name);
  const Options& options = plugin.options();
  output.result({{"kind", "plugin"},
                 {"name", plugin.name},
                 {"version", plugin.version},
                 {"summary", plugin.summary},
                 {"torch", plugin.torch},
                 {"toolchain", plugin.toolchain},
                 {"positional", options.positional()},
                 {"options", options_json(options)}});
  if (output.json()) return 0;
  std::string text = fmt::format("{} {}: {}\n\n", plugin.name, plugin.version, plugin.summary);
  text += options_text(options, "  ");
  text +=
      fmt::format("\nIn a script:  local {0} = mw.plugins(\"{0}\")  …  plan = {{ {0} {{ … }} }}\n",
                  plugin.name);
  text += fmt::format("Built with torch {}, {}\n", plugin.torch, plugin.toolchain);
  output.text(text);
  return 0;
}

}  // namespace mw
