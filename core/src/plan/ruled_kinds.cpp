// Asks rules which ops they hold for, and finds ops that they treat alike.
#include "plan/ruled_kinds.h"

#include <algorithm>

namespace mw {

RuledKinds::RuledKinds(const Graph& graph, const std::vector<Rule>& rules,
                       const std::vector<RotationRule>& rotations)
    : graph_(graph), rules_(rules), rotations_(rotations) {}

RuledKinds::Kind RuledKinds::make(int op) const {
  const Op& what = graph_.ops()[op];
  const Dims space = what.space();
  Kind kind;
  for (const Rule& rule : rules_) {
    if (contains(space, rule.dim) && !contains(what.whole, rule.dim)) kind.rules.push_back(&rule);
  }
  // What follows is cut by rules for its own dim, which are asked where it need not be whole.
  kind.shared = std::none_of(what.follows.begin(), what.follows.end(),
                             [&](const auto& pair) { return contains(what.whole, pair.first); });
  return kind;
}

const RuledKinds::Held& RuledKinds::ask(int op) {
  const Op& what = graph_.ops()[op];
  const auto [found, missing] = kinds_.try_emplace(graph_.kind(op));
  Kind& kind = found->second;
  if (missing) kind = make(op);
  held_.rules.clear();
  held_.rotations.clear();
  for (const Rule* rule : kind.rules) {
    if (!rule->where || rule->where(what)) held_.rules.push_back(rule);
  }
  for (const RotationRule& rule : rotations_) {
    if (!rule.where || rule.where(what)) held_.rotations.push_back(&rule);
  }
  const auto known = std::find_if(kind.known.begin(), kind.known.end(), [&](const Held& other) {
    return other.rules == held_.rules && other.rotations == held_.rotations;
  });
  held_.first = known != kind.known.end() ? known->first : op;
  if (known == kind.known.end() && kind.shared) kind.known.push_back(held_);
  return held_;
}

}  // namespace mw
