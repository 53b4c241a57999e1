// Makes a strategy of a script's plan, by its plugin or of the script's own table, and reports what
// is refused.
#include "script/strategy_choice.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "base/plugin_call.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

Json without_tag(Json entry) {
  entry.erase("plugin");
  entry.erase(strategy_key);
  return entry;
}

void make_by_plugin(const Json& entry, Catalog& catalog,
                    const std::shared_ptr<const ScriptReach>& reach, StrategyChoice& choice,
                    Problems& problems) {
  const Registration& plugin = catalog.find(Kind::strategy, entry.at("plugin").get<std::string>());
  const Speaker speaker{plugin.name, choice.path};
  Values values = call_plugin(
      speaker, "said its options",
      [&] { return plugin.options().read(without_tag(entry), choice.path, problems); },
      Stage::options);
  values.set_reach(reach);
  if (!problems.empty()) return;
  choice.name = plugin.name;
  choice.options = values.json();
  choice.strategy =
      call_plugin(speaker, "was made", [&] { return make<Strategy>(plugin, values); });
  if (choice.strategy == nullptr) {
    throw Error(Stage::plan, "plugin.fault", choice.path,
                fmt::format("{}: the plugin {} made no strategy", choice.path, plugin.name),
                "mend the plugin");
  }
}

void make_by_table(const Json& entry, const std::shared_ptr<const ScriptReach>& reach,
                   StrategyChoice& choice, Problems& problems) {
  const StrategyTable table(entry.at(strategy_key), choice.path, problems);
  if (!problems.empty()) return;
  Values values = table.options().read(without_tag(entry), choice.path, problems);
  if (!problems.empty()) return;
  choice.name = table.name();
  choice.options = values.json();
  choice.strategy = table.make(values, reach);
}

}  // namespace

std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          Catalog& catalog,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems) {
  StrategyChoice choice;
  choice.path = path;
  Problems found;
  if (entry.contains(strategy_key)) {
    make_by_table(entry, reach, choice, found);
  } else {
    make_by_plugin(entry, catalog, reach, choice, found);
  }
  problems.add(found);
  if (!found.empty()) return std::nullopt;
  if (choice.options.contains("ways")) {
    choice.with_ways = [entry, path, &catalog, reach](std::int64_t ways) {
      Json other = entry;
      other.erase(unnamed_key);
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
