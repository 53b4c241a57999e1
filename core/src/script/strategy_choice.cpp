// Makes a strategy of a script's plan by asking its plugin, and reports what the plugin refuses.
#include "script/strategy_choice.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "base/plugin_call.h"

namespace mw {
namespace {

Json without_tag(Json entry) {
  entry.erase("plugin");
  return entry;
}

}  // namespace

std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          Catalog& catalog,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems) {
  const Registration& plugin = catalog.find(Kind::strategy, entry.at("plugin").get<std::string>());
  const Speaker speaker{plugin.name, path};
  Problems found;
  Values values = call_plugin(
      speaker, "said its options",
      [&] { return plugin.options().read(without_tag(entry), path, found); }, Stage::options);
  values.set_reach(reach);
  problems.add(found);
  if (!found.empty()) return std::nullopt;
  StrategyChoice choice;
  choice.name = plugin.name;
  choice.path = path;
  choice.options = values.json();
  choice.strategy =
      call_plugin(speaker, "was made", [&] { return make<Strategy>(plugin, values); });
  if (choice.strategy == nullptr) {
    throw Error(Stage::plan, "plugin.fault", path,
                fmt::format("{}: the plugin {} made no strategy", path, plugin.name),
                "mend the plugin");
  }
  if (values.has("ways")) {
    choice.with_ways = [entry = choice.options, name = choice.name, path, &catalog,
                        reach](std::int64_t ways) {
      Json other = entry;
      other["plugin"] = name;
      other["ways"] = ways;
      Problems refused;
      auto made = make_choice(other, path, catalog, reach, refused);
      refused.throw_if_any();
      return std::move(*made);
    };
  }
  return choice;
}

}  // namespace mw
