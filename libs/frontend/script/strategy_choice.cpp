// Makes a strategy of a script's plan, by its plugin or of the script's own table, and reports what
// is refused.
#include "script/strategy_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "meshwright/choice.h"
#include "meshwright/engine/mix.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "script/script_strategy.h"

namespace mw {
namespace {

Json without_tag(Json entry) {
  entry.erase("plugin");
  entry.erase(strategy_key);
  return entry;
}

// Names in the problem of an unknown option the other strategies of the plan that have this option.
Problem with_owners(Problem problem, const std::string& path, const Catalog& catalog) {
  if (problem.code != "option.unknown" || !problem.key.starts_with(path + ".")) return problem;
  const std::string name = problem.key.substr(path.size() + 1);
  std::vector<std::string> owners;
  for (const Registration* one : catalog.list(Kind::strategy)) {
    if (one->options().find(name) != nullptr) owners.emplace_back(one->name);
  }
  if (!owners.empty())
    problem.hint = fmt::format("{} is an option of {}; {}", name, join(owners), problem.hint);
  return problem;
}

const Registration& strategy_named(const std::string& name, Catalog& catalog, bool anywhere) {
  if (anywhere) {
    for (const Registration* one : catalog.all(Kind::strategy)) {
      if (one->name == name) return *one;
    }
  }
  return catalog.find(Kind::strategy, name);
}

// A size as a script would write it: 1048576 as "1MiB", where that is not less exact.
Json written_size(const Json& bytes) {
  std::string text = format_bytes(bytes.get<double>());
  std::erase(text, ' ');
  return parse_bytes(text) == bytes ? Json(text) : bytes;
}

bool is_usual(const Option& option, const Json& value) {
  if (!option.fallback) return false;
  if (option.type == OptionType::bytes && option.fallback->is_string())
    return value == parse_bytes(option.fallback->get<std::string>()).value_or(0);
  return value == *option.fallback;
}

// A choice in the form that Option::names says, so that one choice is one value however a script
// writes it. What is wrong with it stays as it is, for the strategy to refuse.
Json in_one_form(const Option& option, const Json& given, const std::string& path, Catalog& catalog,
                 Problems& problems) {
  const auto choice = is_function(given) ? std::nullopt : named_choice(given);
  if (!choice) return given;
  if (choice->options.empty()) return choice->name;
  const auto known = catalog.list(*option.names);
  const auto named = [&](const Json& name) {
    return std::find_if(known.begin(), known.end(),
                        [&](const Registration* one) { return name == one->name; });
  };
  const auto found = named(choice->name);
  if (found == known.end()) return given;
  const Json beside = choice->options.value(unnamed_key, Json());
  if (named(beside) != known.end()) {
    problems.add(
        Stage::options, "option.value", path,
        fmt::format("{}: got {}; it is one {}", path, lua_text(given), noun_of(*option.names)),
        fmt::format("write {} or {}", quote(choice->name), lua_text(beside)));
  }
  Problems wrong;
  const Values values = (*found)->options().read(choice->options, path, wrong);
  if (!wrong.empty()) return given;
  Json form = {{"kind", choice->name}};
  for (const Option& own : (*found)->options().list()) {
    if (values.has(own.name) && !is_usual(own, values.at(own.name)))
      form[own.name] = values.at(own.name);
  }
  return form.size() == 1 ? Json(choice->name) : form;
}

// The text for StrategyChoice::differs: options that differ from their defaults, by name.
std::string what_differs(const Options& options, const Values& values) {
  std::map<std::string, std::string> texts;
  for (const Option& option : options.list()) {
    const bool ways = option.name == options.positional() && option.type == OptionType::integer;
    if (ways || !values.has(option.name)) continue;
    const Json& value = values.at(option.name);
    if (value.is_null() || is_usual(option, value)) continue;
    const bool size = option.type == OptionType::bytes && value.is_number();
    texts[option.name] = option_text(option.name, size ? written_size(value) : value);
  }
  std::string text;
  for (const auto& [name, own] : texts) text += (text.empty() ? "" : ", ") + own;
  return text;
}

void make_by_plugin(const Json& entry, Catalog& catalog,
                    const std::shared_ptr<const ScriptReach>& reach, bool anywhere,
                    StrategyChoice& choice, Problems& problems) {
  const Registration& plugin =
      strategy_named(entry.at("plugin").get<std::string>(), catalog, anywhere);
  const PluginPlace speaker{plugin.name, choice.path};
  Problems found;
  Values values = call_plugin(
      speaker, "said its options",
      [&] { return plugin.options().read(without_tag(entry), choice.path, found); },
      Stage::options);
  for (const Problem& problem : found.list())
    problems.add(with_owners(problem, choice.path, catalog));
  Json forms = values.json();
  for (const Option& option : plugin.options().list()) {
    if (!option.names || !values.has(option.name)) continue;
    forms[option.name] = in_one_form(option, values.at(option.name),
                                     key_in(choice.path, option.name), catalog, problems);
  }
  values = Values(std::move(forms), choice.path);
  values.set_reach(reach);
  if (!problems.empty()) return;
  choice.name = plugin.name;
  choice.options = values.json();
  choice.differs = what_differs(plugin.options(), values);
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
  choice.differs = what_differs(table.options(), values);
  choice.strategy = table.make(values, reach);
}

}  // namespace

std::optional<StrategyChoice> make_choice(const Json& entry, const std::string& path,
                                          Catalog& catalog,
                                          const std::shared_ptr<const ScriptReach>& reach,
                                          Problems& problems, bool anywhere) {
  StrategyChoice choice;
  choice.path = path;
  Problems found;
  if (entry.contains(strategy_key)) {
    make_by_table(entry, reach, choice, found);
  } else {
    make_by_plugin(entry, catalog, reach, anywhere, choice, found);
  }
  problems.add(found);
  if (!found.empty()) return std::nullopt;
  choice.written = {{"plugin", choice.name}};
  for (const auto& [key, value] : entry.items()) {
    if (key == unnamed_key && choice.options.contains("ways"))
      choice.written["ways"] = choice.options.at("ways");
    if (!key.starts_with("$")) choice.written[key] = value;
  }
  if (choice.options.contains("ways")) {
    choice.with_ways = [entry, path, &catalog, reach, anywhere](std::int64_t ways) {
      Json other = entry;
      other.erase(unnamed_key);
      other["ways"] = ways;
      Problems refused;
      auto made = make_choice(other, path, catalog, reach, refused, anywhere);
      refused.throw_if_any();
      return std::move(*made);
    };
  }
  return choice;
}

void refuse_namesakes(const Json& plan, Problems& problems) {
  if (!plan.is_array()) return;
  // first entry and its table, by name
  std::map<std::string, std::pair<std::size_t, const Json*>> tables;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!plan[i].is_object() || !plan[i].contains(strategy_key)) continue;
    const Json& table = plan[i].at(strategy_key);
    const std::string name = plan[i].value("plugin", "");
    const auto [first, fresh] = tables.emplace(name, std::pair(i, &table));
    if (fresh || *first->second.second == table) continue;
    problems.add(Stage::plan, "plan.twice", fmt::format("plan[{}]", i + 1),
                 fmt::format("plan[{}]: its name, {}, is that of plan[{}], which is another table",
                             i + 1, name, first->second.first + 1),
                 "give one of the two another name");
  }
}

}  // namespace mw
