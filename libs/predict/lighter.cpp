// Asks strategies for lighter variants of themselves, those of the plan first, and makes the plans
// with them.
#include "predict/lighter.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "predict/variants.h"

namespace mw {
namespace {

std::optional<StrategyChoice> changed(const StrategySource& source, const StrategyChoice& choice,
                                      const Json& options) {
  // Options that the script left out stay left out: they follow from the others.
  Json entry = choice.written.is_null() ? choice.options : choice.written;
  entry.update(options);
  entry["plugin"] = choice.name;
  return strategy_of(source, entry);
}

LighterPlan with(std::vector<StrategyChoice> strategies, std::size_t place,
                 const StrategyChoice& choice, const std::string& what, bool drastic = false) {
  strategies.at(place) = choice;
  return {std::move(strategies), what, drastic};
}

// The lighter variants of `choice`, which stands or would stand at that place of the plan.
LighterFamily family_of(const StrategySource& source, const std::vector<StrategyChoice>& strategies,
                        std::size_t place, const StrategyChoice& choice) {
  LighterFamily family;
  StrategyChoice lightest = choice;
  for (const Lighter& variant : lighter_of(choice)) {
    if (variant.drastic) continue;
    if (const auto other = changed(source, choice, variant.options)) {
      family.mild.push_back(with(strategies, place, *other, variant.what));
      lightest = *other;
    }
  }
  for (const Lighter& variant : lighter_of(lightest)) {
    if (!variant.drastic) continue;
    if (const auto other = changed(source, lightest, variant.options))
      family.drastic.push_back(with(strategies, place, *other, variant.what, true));
  }
  return family;
}

// The one role of all axes with ranks of their own; none if they differ.
Role role_of(const StrategyChoice& choice) {
  Role role = Role::none;
  for (const AxisRequest& axis : choice.axes) {
    if (!axis.borrow.empty()) continue;
    if (role != Role::none && axis.role != role) return Role::none;
    role = axis.role;
  }
  return role;
}

std::string script_text(const StrategyChoice& choice) {
  std::set<std::string> telling;
  for (const Lighter& variant : lighter_of(choice)) {
    if (variant.drastic) continue;
    for (const auto& [key, value] : variant.options.items()) telling.insert(key);
  }
  Json entry = {{"plugin", choice.name}};
  const Json& written = choice.written;
  for (const auto& [key, value] : choice.options.items()) {
    if (written.is_null() || telling.contains(key) || written.contains(key))
      entry[key] = written.contains(key) ? written.at(key) : value;
  }
  return entry_text(entry);
}

// Strategies on the plugin path that are not in the plan, split in `ways` ways what the role says,
// and have lighter variants.
std::vector<StrategyChoice> others(const StrategySource& source,
                                   const std::vector<StrategyChoice>& strategies, Role role,
                                   const Json& ways) {
  std::vector<StrategyChoice> found;
  if (role == Role::none || !source.make || !source.names) return found;
  for (const std::string& name : source.names()) {
    const bool there = std::any_of(strategies.begin(), strategies.end(),
                                   [&](const StrategyChoice& c) { return c.name == name; });
    if (there) continue;
    auto other = strategy_of(source, {{"plugin", name}, {"ways", ways}});
    if (!other || role_of(*other) != role) continue;
    const std::vector<Lighter> variants = lighter_of(*other);
    if (std::any_of(variants.begin(), variants.end(), [](const Lighter& v) { return !v.drastic; }))
      found.push_back(std::move(*other));
  }
  return found;
}

}  // namespace

std::string script_text(const std::vector<StrategyChoice>& strategies) {
  std::string text;
  for (const StrategyChoice& choice : strategies)
    text += (text.empty() ? "" : ", ") + script_text(choice);
  return text.empty() ? "{}" : fmt::format("{{ {} }}", text);
}

StrategyChoice with_axes(StrategyChoice choice) {
  choice.axes = call_plugin({choice.name, ""}, "said which axes it needs",
                            [&] { return choice.strategy->axes(); });
  return choice;
}

std::optional<StrategyChoice> strategy_of(const StrategySource& source, const Json& entry) {
  return unless_refused([&] { return std::optional(with_axes(source.make(entry))); });
}

bool splits(const StrategyChoice& choice, Role role) {
  return std::any_of(choice.axes.begin(), choice.axes.end(), [&](const AxisRequest& axis) {
    return axis.role == role && axis.borrow.empty();
  });
}

std::vector<Lighter> lighter_of(const StrategyChoice& choice) {
  return unless_refused([&] {
    return call_plugin({choice.name, choice.path}, "said how it could hold less",
                       [&] { return choice.strategy->lighter(); });
  });
}

std::vector<LighterFamily> lighter_families(const StrategySource& source,
                                            const std::vector<StrategyChoice>& strategies) {
  std::vector<LighterFamily> families;
  if (!source.make) return families;
  for (std::size_t place = 0; place < strategies.size(); ++place) {
    const StrategyChoice& choice = strategies[place];
    if (!lighter_of(choice).empty()) {
      families.push_back(family_of(source, strategies, place, choice));
      continue;
    }
    if (!choice.options.contains("ways")) continue;
    for (StrategyChoice& other :
         others(source, strategies, role_of(choice), choice.options.at("ways"))) {
      // Options that both strategies have keep their values, unless the other strategy refuses a
      // value.
      for (const auto& [key, value] : choice.written.items()) {
        if (key == "plugin" || key == "ways" || !other.options.contains(key)) continue;
        if (auto alike = changed(source, other, {{key, value}})) other = std::move(*alike);
      }
      LighterFamily family = family_of(source, strategies, place, other);
      if (family.mild.empty()) continue;
      family.mild.insert(family.mild.begin(),
                         with(strategies, place, other, family.mild.front().what));
      families.push_back(std::move(family));
    }
  }
  return families;
}

std::vector<LighterPlan> with_data_axis(const StrategySource& source,
                                        const std::vector<StrategyChoice>& strategies, int ways) {
  std::vector<LighterPlan> plans;
  const bool stages = !strategies.empty() && splits(strategies.front(), Role::layers);
  const std::size_t place = stages ? 1 : 0;
  for (const StrategyChoice& other : others(source, strategies, Role::data, ways)) {
    std::vector<StrategyChoice> more = strategies;
    more.insert(more.begin() + static_cast<std::ptrdiff_t>(place), other);
    LighterFamily family = family_of(source, more, place, other);
    if (!family.mild.empty()) plans.push_back(std::move(family.mild.back()));
  }
  return plans;
}

}  // namespace mw
