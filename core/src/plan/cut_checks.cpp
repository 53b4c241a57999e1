// Says which strategies claim one op's axis, and which dims do not divide by their ways.
#include "plan/cut_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/json_text.h"
#include "plan/nearest.h"

namespace mw {

void CutChecks::clash(const Op& op, const Rule& a, const Rule& b, int atom) {
  if (!said_.insert(fmt::format("{}/{}/{}", a.strategy, b.strategy, op.kind())).second) return;
  problems_.add(Stage::plan, "rule.clash", key_in(b.place, b.option),
                fmt::format("{} ({} -> {}) and {} ({} -> {}) both claim the ranks of axis {} in {}",
                            a.strategy, a.dim.name(), a.axis, b.strategy, b.dim.name(), b.axis,
                            mesh_.atoms()[atom].name, op.name),
                "give each an axis of its own, or leave one out");
}

void CutChecks::even(const Layout& cut, const Rule& rule) {
  const auto info = graph_.dims().find(rule.dim);
  if (info == graph_.dims().end()) return;
  int ways = 1;
  for (std::size_t a = 0; a < cut.size(); ++a) {
    if (cut[a].is_shard() && cut[a].dim == rule.dim) ways *= mesh_.atoms()[a].ways;
  }
  const std::int64_t size = info->second.size;
  const bool fits = info->second.even ? size % ways == 0 : size >= ways;
  if (fits) return;
  const int own = mesh_.axis(rule.axis).ways;
  const int others = ways == own ? 1 : std::max(1, ways / own);
  // Where the other axes leave no even parts to cut, they are at fault, and told so.
  if (info->second.even && size % others != 0 && at_fault_.count(rule.dim) > 0) return;
  if (!said_.insert(rule.strategy + "/" + rule.dim.name()).second) return;
  at_fault_.insert(rule.dim);
  const std::int64_t left = size / others;
  WrongWays wrong = ways_near(rule.strategy, left, own, info->second.even);
  wrong.problem = problems_.list().size();
  problems_.add(Stage::plan, "axis.cannot-split", key_in(rule.place, "ways"),
                fmt::format("{}({}) cannot split {} {}", rule.strategy, own, left, rule.dim.name()),
                hint_of(wrong));
  wrong_ways_.push_back(std::move(wrong));
}

}  // namespace mw
