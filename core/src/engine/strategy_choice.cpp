// Makes a strategy of a script's plan by asking its plugin, and reports what the plugin refuses.
#include "engine/strategy_choice.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "base/plugin_call.h"
#include "base/text.h"
#include "engine/kinds.h"

namespace mw {
namespace {

// What a strategy said of its options, with the place of its entry: "plan[1].schedule: ...".
Error placed(const Error& error, const Json& entry, const Speaker& speaker) {
  std::vector<Problem> problems = error.problems();
  for (Problem& problem : problems) {
    const std::string& message = problem.message;
    const std::string key = message.substr(0, message.find_first_of(":. ="));
    const bool option = !key.empty() && entry.contains(key) && key.size() < message.size();
    if (option) {
      problem.message = fmt::format("{}.{}", speaker.place, readable(message));
    } else if (std::string text = attributed(speaker, message); text.starts_with(speaker.place)) {
      problem.message = std::move(text);
    } else {
      problem.message = fmt::format("{}: {}", speaker.place, text);
    }
  }
  return Error(std::move(problems));
}

}  // namespace

std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          PluginCatalog& plugins,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems) {
  const PluginDescriptor& plugin = plugins.find(entry.at("plugin").get<std::string>());
  const Speaker speaker{plugin.name, path};
  Problems found;
  Values values = call_plugin(
      speaker, "said its options",
      [&] { return plugin.options().read(untagged(entry, "plugin"), path, found); },
      Stage::options);
  values.set_reach(reach);
  for (const Problem& p : found.list()) problems.add(p.stage, p.message, p.hint);
  if (!found.empty()) return std::nullopt;
  StrategyChoice choice;
  choice.name = plugin.name;
  choice.path = path;
  choice.options = values.json();
  try {
    choice.strategy = plugin.make_strategy(values);
  } catch (const Error& error) {
    throw placed(error, entry, speaker);
  } catch (...) {
    throw_named(speaker, "was made");
  }
  if (choice.strategy == nullptr) {
    throw Error(Stage::plan, fmt::format("{}: the plugin {} made no strategy", path, plugin.name),
                "mend the plugin");
  }
  if (values.has("ways")) {
    choice.with_ways = [entry = choice.options, name = choice.name, path, &plugins,
                        reach](std::int64_t ways) {
      Json other = entry;
      other["plugin"] = name;
      other["ways"] = ways;
      Problems refused;
      auto made = make_choice(other, path, plugins, reach, refused);
      refused.throw_if_any();
      return std::move(*made);
    };
  }
  return choice;
}

}  // namespace mw
