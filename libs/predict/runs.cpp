// Reads what a stack's software can run, and checks plans against it.
#include "predict/runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr const char* of_lists[] = {"schedules", "recompute", "offload"};

std::optional<std::vector<Json>> values_in(const Json& given) {
  if (!given.is_array() || given.empty()) return std::nullopt;
  return std::vector<Json>(given.begin(), given.end());
}

// The name of a schedule. A script's own order has none.
std::string schedule_name(const Json& value) {
  const auto choice = named_choice(value);
  if (!choice) return "of the script";
  return choice->name == "schedule" ? choice->options.value("name", "of the script") : choice->name;
}

// The names of what the software has, for people.
std::string names_text(const std::vector<std::string>& names) {
  return names.empty() ? "none" : join(names);
}

std::string values_text(const std::vector<Json>& values) {
  std::vector<std::string> texts;
  for (const Json& one : values) texts.push_back(lua_text(one));
  return names_text(texts);
}

}  // namespace

std::string kind_name(const RecomputePolicy& policy) {
  using K = RecomputePolicy::Kind;
  switch (policy.kind) {
    case K::none:
      return "none";
    case K::selective:
      return "selective";
    case K::full:
      return "full";
    case K::ops:
      return "ops";
    case K::function:
      return "function";
    case K::fit:
    case K::fixed:
      return "fit";
    case K::registered:
      break;
  }
  return policy.settings.value("kind", "registered");
}

std::string kind_name(const OffloadPolicy& policy) {
  using K = OffloadPolicy::Kind;
  switch (policy.kind) {
    case K::none:
      return "none";
    case K::full:
      return "full";
    case K::layers:
      return "layers";
    case K::ops:
      return "ops";
    case K::function:
    case K::fixed:
      break;
  }
  return "function";
}

std::optional<SoftwareRuns::OptionValues> SoftwareRuns::options_in(const Json& table) {
  OptionValues options;
  if (table.is_boolean()) return options;
  if (!table.is_object()) return std::nullopt;
  for (const auto& [name, given] : table.items()) {
    if (name.starts_with('$')) continue;
    auto values = values_in(given);
    if (!values) return std::nullopt;
    options[name] = std::move(*values);
  }
  return options;
}

bool SoftwareRuns::read_together(const Json& list) {
  constexpr int most_parts = 64;
  if (!list.is_array()) return false;
  int bit = 0;
  for (const Json& given : list) {
    if (!given.is_object()) return false;
    Together together;
    together.first = bit;
    for (const auto& [name, part] : given.items()) {
      if (name.starts_with('$')) continue;
      auto options = options_in(part);
      if (!options || bit == most_parts) return false;
      const bool absent = part.is_boolean() && !part.get<bool>();
      together.all |= Parts{1} << bit;
      together.absent |= absent ? Parts{1} << bit : 0;
      together.parts.push_back({name, absent, std::move(*options)});
      ++bit;
    }
    if (together.parts.empty()) return false;
    apart_.push_back(std::move(together));
  }
  return true;
}

SoftwareRuns SoftwareRuns::read(const Json& table, const std::string& path, Problems& problems) {
  SoftwareRuns runs;
  if (!table.is_object()) return runs;
  const auto wrong = [&](const std::string& key, const Json& given, const char* hint) {
    problems.add(Stage::options, "cluster.value", path + "." + key,
                 fmt::format("{}.{}: got {}", path, key, describe(given)), hint);
  };
  for (const auto& [key, given] : table.items()) {
    if (key.starts_with('$')) continue;
    runs.everything_ = false;
    if (std::find(std::begin(of_lists), std::end(of_lists), key) != std::end(of_lists)) {
      const bool names =
          given.is_array() &&
          std::all_of(given.begin(), given.end(), [](const Json& one) { return one.is_string(); });
      if (names) runs.lists_[key] = given.get<std::vector<std::string>>();
      if (!names) wrong(key, given, "a list of names, such as { \"1f1b\", \"interleaved\" }");
    } else if (key == "apart") {
      if (!runs.read_together(given))
        wrong(key, given,
              "a list of what does not go together, 64 parts at most: { { pp = true, zero = { "
              "stage = { 2, 3 } } } }; false: what the plan lacks");
    } else if (given.is_boolean() && !given.get<bool>()) {
      wrong(key, given, "leave out a strategy that the software does not have");
    } else {
      auto options = options_in(given);
      if (!options) wrong(key, given, "true, or the values of options: { stage = { 1, 2 } }");
      if (options) runs.strategies_[key] = std::move(*options);
    }
  }
  return runs;
}

std::string SoftwareRuns::lacks_strategy(const std::string& name) const {
  if (strategies_.empty() || strategies_.contains(name)) return "";
  std::vector<std::string> has;
  for (const auto& [known, options] : strategies_) has.push_back(known);
  return fmt::format("{} (it has {})", name, join(has));
}

bool SoftwareRuns::leaves_out(const std::string& key, const std::string& name) const {
  const auto list = lists_.find(key);
  return list != lists_.end() && std::ranges::find(list->second, name) == list->second.end();
}

std::string SoftwareRuns::lacks_schedule(const std::string& name) const {
  if (!leaves_out("schedules", name)) return "";
  const std::vector<std::string>& has = lists_.at("schedules");
  return fmt::format("the schedule {} (it has {})", name, names_text(has));
}

std::string SoftwareRuns::lacks_policy(const char* what, const std::string& kind) const {
  if (!leaves_out(what, kind)) return "";
  return fmt::format("{} = \"{}\" (it has {})", what, kind, names_text(lists_.at(what)));
}

std::string SoftwareRuns::lacks_options(const std::string& name, const Json& options) const {
  if (const auto order = options.find("schedule"); order != options.end() && !order->is_null()) {
    if (std::string why = lacks_schedule(schedule_name(*order)); !why.empty()) return why;
  }
  const auto known = strategies_.find(name);
  if (known == strategies_.end()) return "";
  for (const auto& [option, values] : known->second) {
    if (!options.contains(option) || options.at(option).is_null()) continue;
    const Json& value = options.at(option);
    if (std::find(values.begin(), values.end(), value) != values.end()) continue;
    return fmt::format("{} {{ {} = {} }} (it has {})", name, option, lua_text(value),
                       values_text(values));
  }
  return "";
}

SoftwareRuns::Parts SoftwareRuns::parts_of(const std::string& name, const Json& options) const {
  Parts found = 0;
  for (const Together& together : apart_) {
    for (std::size_t k = 0; k < together.parts.size(); ++k) {
      const Part& part = together.parts[k];
      if (part.strategy != name) continue;
      const bool has = std::all_of(part.options.begin(), part.options.end(), [&](const auto& one) {
        return options.contains(one.first) && std::find(one.second.begin(), one.second.end(),
                                                        options.at(one.first)) != one.second.end();
      });
      if (has) found |= Parts{1} << (together.first + static_cast<int>(k));
    }
  }
  return found;
}

const SoftwareRuns::Together* SoftwareRuns::apart(Parts parts) const {
  const auto found = std::ranges::find_if(apart_, [&](const Together& together) {
    return (parts & together.all) == (together.all & ~together.absent);
  });
  return found == apart_.end() ? nullptr : &*found;
}

std::string SoftwareRuns::lacks_together(Parts parts) const {
  const Together* together = apart(parts);
  if (together == nullptr) return "";
  std::vector<std::string> with, without;
  for (const Part& part : together->parts) {
    std::string text = part.strategy;
    for (const auto& [option, values] : part.options)
      text += fmt::format(" {{ {} = {} }}", option, values_text(values));
    (part.absent ? without : with).push_back(text);
  }
  return join(with, " with ") + (without.empty() ? "" : " without " + join(without));
}

std::vector<std::string> SoftwareRuns::lacks(const PlanRequest& request) const {
  std::vector<std::string> all;
  if (everything()) return all;
  const auto add = [&](std::string why) {
    if (!why.empty() && std::find(all.begin(), all.end(), why) == all.end())
      all.push_back(std::move(why));
  };
  Parts parts = 0;
  for (const StrategyChoice& choice : request.strategies) {
    add(lacks_strategy(choice.name));
    add(lacks_options(choice.name, choice.options));
    parts |= parts_of(choice.name, choice.options);
  }
  add(lacks_policy("recompute", kind_name(request.recompute)));
  add(lacks_policy("offload", kind_name(request.offload)));
  add(lacks_together(parts));
  return all;
}

}  // namespace mw
